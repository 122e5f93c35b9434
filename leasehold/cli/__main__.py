"""Runs the `leasehold` command for `python -m leasehold.cli`."""

from leasehold.cli import main

main()
