"""Implementations of the Store port, which reads and writes the authoritative rows: in memory and on SQL databases."""
