"""The worker processes and their parts: configuration, services, logs, metrics, probes, and EC2 (`workers.ec2`)."""
