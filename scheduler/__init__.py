"""Decides who gets which slot: pure policy, the operations around it, and the seams to the outside."""
