"""Scenario files, each with the decisions that a rule of the pages leads to."""
