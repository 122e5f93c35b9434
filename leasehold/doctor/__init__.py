"""`leasehold doctor`: check everything that an installation depends on, and name a remedy for each fault.

`broker`, `database`, `programs` and `cloud` observe the parts of the installation. `rules` turns observations into
findings, without I/O. `examination` runs the observations one after the other, each with a time limit.
"""
