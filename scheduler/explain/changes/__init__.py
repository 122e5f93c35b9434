"""The kinds of change that may end a reservation's wait, such as more slots or a higher limit. Each kind has a function
that searches for such a change.
"""
