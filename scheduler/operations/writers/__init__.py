"""Writers of a plan's decisions, one module for each kind of row. Each decision is tested again on the current rows,
and then written.
"""
