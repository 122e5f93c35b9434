"""One suite a port of belief, run on every implementation."""
