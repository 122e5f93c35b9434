"""The core of the client: coroutines of one event loop. The blocking client calls them through a portal."""
