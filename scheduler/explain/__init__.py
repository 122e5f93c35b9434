"""What-if search: why a reservation waits, and the smallest change that ends the wait. Never part of a tick."""
