"""EC2's quota classes: the groups of instance types for which AWS limits the number of vCPUs, in each market.

Source: EC2 user guide, "EC2 On-Demand instance limits" and "Spot Instance quotas".
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from scheduler.model.pools import Pool

OTHER: Final = "other"
"""The class that all types share which the table does not know."""
CLASS_OF_FAMILY: Final[Mapping[str, str]] = {
    **dict.fromkeys("acdhimrtz", "standard"),
    "is": "standard",
    "im": "standard",
    "g": "g",
    "gr": "g",
    "vt": "g",
    "p": "p",
    "inf": "inf",
    "trn": "trn",
    "x": "x",
    "f": "f",
    "hpc": "hpc",
    "u": "high-memory",
    "dl": "dl",
}
"""Letters with which the name of an instance type begins -> the quota class of the type."""


class VcpuQuota(NamedTuple):
    """A quota of vCPUs, as AWS's Service Quotas names it."""

    name: str
    code: str


QUOTAS: Final[Mapping[str, tuple[str, str, str]]] = {
    "standard": ("Standard (A, C, D, H, I, M, R, T, Z)", "L-1216C47A", "L-34B43A08"),
    "g": ("G and VT", "L-DB2E81BA", "L-3819A6DF"),
    "p": ("P", "L-417A185B", "L-7212CCBC"),
    "inf": ("Inf", "L-1945791B", "L-B5D1601B"),
    "trn": ("Trn", "L-2C3B7624", "L-6B0D517C"),
    "x": ("X", "L-7295265B", "L-E3A00192"),
    "f": ("F", "L-74FC7D96", "L-88CF9481"),
    "dl": ("DL", "L-6E869C2A", "L-85EED4F7"),
    "hpc": ("HPC", "L-F7808C92", ""),
    "high-memory": ("High Memory", "L-43DA4232", ""),
}
"""Quota class -> AWS's name of the class, and the codes of its quotas for on-demand and for spot; "": there is none.
Source: Service Quotas, Amazon EC2.
"""
_FAMILY: Final = re.compile(r"([a-z]+)[0-9][a-z0-9-]*\.[a-z0-9-]+|(u)-[a-z0-9]+\.[a-z0-9-]+")


@lru_cache(maxsize=4096)
def find_quota_class(instance_type: str) -> str:
    """Return the quota class of an EC2 instance type, `OTHER` if the table does not know the type."""
    found = _FAMILY.fullmatch(instance_type)
    return OTHER if found is None else CLASS_OF_FAMILY.get(found[1] or found[2], OTHER)


def quota_subject(pool: Pool, key: str | None, market: str) -> str:
    """Return what a quota limits that a launch of this offering needs, as `MARKET:CLASS`; "" in a pool without
    offerings. `key`: the offering's key. The key of an offering that the pool no longer has begins with its name.
    """
    if not key or not market:
        return ""
    offering = pool.offering_by_key.get(key)
    return f"{market}:{find_quota_class(offering.instance_type if offering else key.partition('/')[0])}"


def is_limited_by(subject: str, limit: str) -> bool:
    """Return whether a quota's back-off with the subject `limit` concerns launches that need `subject`. `limit`: ""
    (all launches of the pool), `MARKET` (as earlier versions wrote it), or `MARKET:CLASS`.
    """
    return limit in {"", subject, subject.partition(":")[0]}


def find_quota(subject: str) -> VcpuQuota | None:
    """Return AWS's quota for a subject `MARKET:CLASS`; None if the class or its quota is not known."""
    market, _, name = subject.partition(":")
    title, on_demand, spot = QUOTAS.get(name, ("", "", ""))
    if market == "spot":
        return VcpuQuota(f"All {title} Spot Instance Requests", spot) if spot else None
    return VcpuQuota(f"Running On-Demand {title} instances", on_demand) if on_demand else None


def show_class(name: str) -> str:
    """Return AWS's name of a quota class, like "G and VT"."""
    return QUOTAS[name][0].partition(" (")[0] if name in QUOTAS else name
