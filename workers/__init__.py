"""Hands: what the slow queues do to the outside world."""
