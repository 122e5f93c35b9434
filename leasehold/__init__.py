"""What people type and import: the command line, the producer client, the embedded stack."""
