"""Launching slots and draining them: limits, offerings, the warm pool and scale-in."""
