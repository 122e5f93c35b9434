"""Commit, table by table: each decision is checked again on fresh rows and written."""
