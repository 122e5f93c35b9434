"""The rules of scheduling as pure functions. `plan.py` calls the steps of a tick in their order.

The functions do no I/O, read no clock and use no random numbers: the same input gives the same output.
"""
