"""The demo: jobs of a real workload log, compressed in time, are served by a whole stack on this machine."""
