"""Requests of producers, holders, hosts and operators: validated, authorised and written."""
