"""Wall clocks that are wrong: the harness that shifts them, and what has to hold while they are."""
