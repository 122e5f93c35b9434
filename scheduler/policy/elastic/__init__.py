"""Elastic instances: granting, reclaiming and accounting for their use."""
