"""The rules of scheduling as pure functions, with the steps of a tick among them (`plan.py`).

They do no I/O, read no clock and use no random numbers: the same input gives the same output.
"""
