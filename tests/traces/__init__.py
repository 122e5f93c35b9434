"""Tests of workload traces that are played on the simulated fleet."""
