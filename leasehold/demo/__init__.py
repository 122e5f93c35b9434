"""The demo: a stretch of a real workload log, compressed in time, served by a whole stack on this machine."""
