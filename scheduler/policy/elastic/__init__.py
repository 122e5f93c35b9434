"""Elastic instances: how they are granted and reclaimed, and how their use of slots is counted."""
