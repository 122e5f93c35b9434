"""`leasehold simulate TRACE`: play a workload log on a fleet, compare several settings, draw the results."""
