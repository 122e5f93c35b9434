"""The order of pending reservations, and which of them cannot be served."""
