"""The kinds of changes that the search tries."""
