"""Placing under `queue: quota`, with accounts, levels and preemption. Source: qscheduler."""
