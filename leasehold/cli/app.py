"""The `leasehold` command with all its subcommands.

Every command file imports only light modules at its top, because each start and each completion imports all of them.
"""

from leasehold.cli import (  # noqa: F401 - each file adds its commands when it is imported
    accounts,
    alive,
    backups,
    configuring,
    costs,
    demo,
    doctor,
    holding,
    hosting,
    listing,
    logs,
    offers,
    operating,
    prices,
    principals,
    reading,
    requesting,
    ruling,
    running,
    simulating,
    status,
    top,
)
from leasehold.cli.root import GROUPS, app

__all__ = ["GROUPS", "app"]
