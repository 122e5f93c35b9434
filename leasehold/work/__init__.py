"""Commands on the leases of a host: the agent takes them, a small process (the guard) runs them, and each ends in time.

The guard imports nothing of this package, see `guard.py`.
"""
