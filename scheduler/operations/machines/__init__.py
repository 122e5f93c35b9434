"""Work on EC2 instances: launch, check, terminate, reconcile."""
