"""What both sides of the wire have to agree on: the client, the workers and the scheduler import it.

Nothing here imports anything but the standard library, and nothing of Leasehold besides: a producer whose own program
has a package named `scheduler` or `tasks` can use the client.
"""
