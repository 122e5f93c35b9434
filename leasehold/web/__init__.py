"""What the HTTP API and the console share: the caller of a request, its rights, and the live copy of the view.

It needs the extra `console`, and the settings and connections of the cluster's own processes.
"""
