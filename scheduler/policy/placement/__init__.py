"""Assigning leases to ready slots, and sharing spare cores among them."""
