"""Tests of the rules: elastic instances."""
