"""The truth: implementations of the Store port, in memory and on SQL."""
