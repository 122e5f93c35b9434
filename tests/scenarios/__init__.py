"""Scenarios as tests: what `leasehold simulate` decides, rule by rule."""
