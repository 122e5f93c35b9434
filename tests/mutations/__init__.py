"""Mutants measure the tests of the rules: rules are turned into wrong ones, and each has to make a test fail."""
