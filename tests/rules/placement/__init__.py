"""Tests of the rules: which slot a reservation gets."""
