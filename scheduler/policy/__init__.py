"""Pure verbs: one file for each step of a tick. No clock, no I/O, no randomness: same input, same output."""
