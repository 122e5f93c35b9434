"""Planning again after few changes. The state of the last cycle is kept (a kept cycle), and the next tick examines only
what has changed since then. If that is not possible, a full cycle plans from the beginning.
"""
