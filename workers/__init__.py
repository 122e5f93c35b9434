"""The parts of the worker processes: configuration, services, logs, metrics, probes, and EC2 (`workers.ec2`)."""
