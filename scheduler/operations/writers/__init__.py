"""Writers of a plan's decisions, by table: each decision is tested again on the current rows, then written."""
