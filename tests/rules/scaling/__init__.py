"""Tests of the rules: launches, warm pools and scale-in."""
