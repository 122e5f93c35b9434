"""The parts of `leasehold top`: follow the view with small reads, compute figures of the fleet and the queue, and draw
them on a terminal.
"""
