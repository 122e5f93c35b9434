"""Chaos runs: real processes, faults that a random seed chooses, and a checker that sees only what remains."""
