"""The way of the client over Redis: connections, requests, reads and notices of one event loop."""
