"""Tests: rules first, then the seams, then the whole."""
