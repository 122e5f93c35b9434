"""The processes around the rules: configuration, services, logs, metrics, probes, and EC2 in `workers.ec2`."""
