"""Tests of the rules: the order of the queue, and what waits for which reason."""
