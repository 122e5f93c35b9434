"""Tests of the console: the gate, the feed and the pages, on a real Redis, a real database and a real web server."""
