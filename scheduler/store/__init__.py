"""Implementations of the Store port, in memory and on SQL."""
