"""Handlers of the requests of producers, holders, hosts and operators: requests are validated, authorised and
stored.
"""
