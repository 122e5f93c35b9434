"""Tests: rules first, then the ports and their implementations, then whole systems."""
