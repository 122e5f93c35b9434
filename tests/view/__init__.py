"""One suite for each port of the view, run with every implementation."""
