"""Tests of the rules: the answer to "why is this waiting?"."""
