"""Writers of a plan's decisions, one module for each kind of row. Each decision is tested again, against the current
rows, before it is written.
"""
