"""Shifts the wall clock of single processes."""
