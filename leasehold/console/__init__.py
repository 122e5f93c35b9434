"""The console: one process that serves web pages and the HTTP API of a cluster.

It reads the view and the database. Each change is a request through the client, like that of a producer.
"""
