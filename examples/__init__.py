"""Input to play with, and what made it."""
