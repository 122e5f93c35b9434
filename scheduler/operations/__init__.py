"""Load, decide, commit, tell: what is done with the rules of `policy` and the seams of `ports`."""
