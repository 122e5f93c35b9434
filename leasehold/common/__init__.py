"""What both sides of the wire have to agree on: the client, the workers and the scheduler import it.

These modules import only the standard library and each other: a producer whose own program
has a package named `scheduler` or `tasks` can use the client.
"""
