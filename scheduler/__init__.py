"""Decide which reservation gets which slot: pure rules, the operations around them, and the ports to the outside."""
