"""Work on EC2 instances: launch, check and terminate machines, and compare them with the slots."""
