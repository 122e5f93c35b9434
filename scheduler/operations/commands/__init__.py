"""Handlers of the requests of producers, holders, hosts and operators: each request is validated, its sender's rights
are checked, and its effect is stored.
"""
