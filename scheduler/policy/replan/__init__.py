"""Planning again after few changes: the kept state of the last cycle is used again, and only changes are examined."""
