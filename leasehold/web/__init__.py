"""What the HTTP API and the console share: the caller of a request, its rights, and the live copy of the view.

Its modules need the extra `console` (a set of optional dependencies), and the settings and connections of the cluster's
own processes.
"""
