"""Database URLs that name several hosts, as libpq permits: `postgresql://user@host1:5432,host2:5433/name`."""

import re
from typing import Final

_HOSTS: Final = re.compile(r"(postgresql(?:\+psycopg)?://(?:[^/@]*@)?)([^/?@]+,[^/?@]+)(.*)", re.DOTALL)


def split_hosts(url: str) -> list[str]:
    """Return one URL for each host that the database URL names, in the same order."""
    found = _HOSTS.fullmatch(url)
    return [f"{found[1]}{host}{found[3]}" for host in found[2].split(",")] if found else [url]
