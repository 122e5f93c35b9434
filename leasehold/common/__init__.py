"""Definitions that the client, the workers and the scheduler share: names, clock, signatures, heartbeats.

These modules import only the standard library and each other. A producer whose own program has a package named
`scheduler` or `tasks` can therefore use the client.
"""
