"""Runs the `leasehold` command for `python -m leasehold`."""

from leasehold.cli import main

main()
