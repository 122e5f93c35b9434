"""The ground floor: what the client, the workers and the scheduler share, such as names, clock, signatures, heartbeats.

These modules import only the standard library and each other; `redis_primary` also imports redis-py. This file and that
of the package above import nothing, so that a program that needs one module of the ground floor loads no other.
"""
