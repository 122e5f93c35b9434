"""`leasehold doctor`: check everything that an installation depends on, and name a remedy for each fault.

The modules `broker`, `database`, `programs` and `cloud` each observe a part of the installation. `rules` turns
observations into findings, without I/O. `examination` runs all checks one after the other, each with a time limit.
"""
