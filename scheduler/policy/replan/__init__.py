"""Planning again after few changes: the last cycle goes on, and only what changed is examined."""
