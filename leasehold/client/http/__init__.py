"""The way of the client over HTTP: connections, requests, reads and notices of one event loop."""
