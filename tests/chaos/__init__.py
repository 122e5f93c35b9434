"""Chaos: real processes, a nemesis that breaks them by a seed, and a checker that looks at it from outside."""
