"""Tests of the rules: the order of the queue, and why a reservation waits."""
