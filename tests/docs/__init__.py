"""The pages describe what the code does, and their examples run."""
