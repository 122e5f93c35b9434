"""The kinds of change that may end a reservation's wait, such as more slots or a higher limit, and the
search for each.
"""
