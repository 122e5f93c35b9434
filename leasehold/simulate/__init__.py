"""`leasehold simulate TRACE`: a workload log played on a fleet, side by side under several settings, with a picture."""
