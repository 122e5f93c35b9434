"""Tests of the rules: quota accounts, levels and preemption."""
