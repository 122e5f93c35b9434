"""The HTTP API: everything that a client can do and read, as JSON. docs/reference/http.md describes it.

It needs the extra `console` (a set of optional dependencies).
"""
