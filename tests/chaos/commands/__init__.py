"""Chaos for commands on leases: real agents, guards and commands, faults of hosts, and the checker of what ran."""
