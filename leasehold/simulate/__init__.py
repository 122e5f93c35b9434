"""The parts of `leasehold simulate TRACE`: simulate a workload log on a fleet, compare several settings, and draw the
results.
"""
