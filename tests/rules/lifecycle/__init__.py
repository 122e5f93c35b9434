"""Tests of the rules: expiry, failures, draining and the life of a machine."""
