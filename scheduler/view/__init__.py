"""Belief: the lagging view, leadership, kicks and counters, on Redis and in memory."""
