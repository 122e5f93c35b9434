"""Implementations, in Redis and in memory, of the ports to Redis: the view (a copy of the database's rows), the leader
lock, the notifier, the meter and others.
"""
