"""Pages say what the code does, and their examples run."""
