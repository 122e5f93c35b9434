"""Benchmarks. Each module prints figures of one machine and one run. None asserts a time."""
