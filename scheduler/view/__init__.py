"""Adapters in Redis and in memory: the view (a copy of the database's rows), leader lock, notifier, meter and more."""
