"""Tests of the rules: why a reservation waits, and the smallest change that would end the wait."""
