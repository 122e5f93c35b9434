"""Implementations of the ports for the view, leadership, kicks and counters, on Redis and in memory."""
