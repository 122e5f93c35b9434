"""One tick: load, plan, commit, publish."""
