"""The kinds of changes that the search for the end of a wait tries."""
