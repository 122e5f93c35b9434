"""Database URLs that name several hosts, as libpq permits (`postgresql://user@host1:5432,host2:5433/name`), and their
parameter about a pooler.
"""

import re
from typing import Final

POOLING: Final = "pooling"
"""Parameter of a URL of PostgreSQL: `transaction` (a pooler in transaction pooling is in between), `none` or `auto`. It
is not passed on to the driver.
"""
_HOSTS: Final = re.compile(r"(postgresql(?:\+psycopg)?://(?:[^/@]*@)?)([^/?@]+,[^/?@]+)(.*)", re.DOTALL)


def split_hosts(url: str) -> list[str]:
    """Return one URL for each host that the database URL names, in the same order."""
    found = _HOSTS.fullmatch(url)
    return [f"{found[1]}{host}{found[3]}" for host in found[2].split(",")] if found else [url]
