"""`python -m leasehold.cli`: the same as `leasehold`."""

from leasehold.cli import main

main()
