"""Definitions that the client, the workers and the scheduler share.

These modules import only the standard library and each other.
"""
