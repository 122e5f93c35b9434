"""What the HTTP API and the console share: who sends a request, what that caller may do, and the live copy of the view.

It needs the extra `console`, and the settings and connections of the cluster's own processes.
"""
