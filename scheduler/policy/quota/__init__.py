"""Placement under `queue: quota`: accounts, levels, preemption. Source: qscheduler."""
