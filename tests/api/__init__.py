"""Tests of the HTTP API: a real server in front of a fake intake and a real Redis."""
