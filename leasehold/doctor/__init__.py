"""`leasehold doctor`: check everything that an installation depends on, and name a remedy for each fault.

`examination` observes the parts of an installation and runs all checks one after the other, each with a time limit;
`cloud` observes AWS. `rules` turns observations into findings, without I/O.
"""
