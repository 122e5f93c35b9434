"""Launching and draining slots: limits, offerings, the warm pool, the stopped tier and scale-in."""
