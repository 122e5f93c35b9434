"""Tests of workload traces that are replayed on the simulated fleet."""
