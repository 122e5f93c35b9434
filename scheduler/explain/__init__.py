"""The what-if search: why a reservation waits, and the smallest change that would end its wait. A tick never runs
it.
"""
