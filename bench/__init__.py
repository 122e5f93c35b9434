"""Measurements: each module prints figures of one machine and one run; none asserts a time."""
