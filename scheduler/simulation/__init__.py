"""The same plan and operations on a virtual clock and a simulated cloud."""
