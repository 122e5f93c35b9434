"""Tests of the rules: what fits on a slot."""
