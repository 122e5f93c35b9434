"""The plain scheduler: a naive model of quota accounts, levels and preemption, and generated scenarios for it."""
