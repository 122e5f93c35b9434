"""The settings of `elastic`, compared on the workload of a paper: `python -m examples.flexible`."""
