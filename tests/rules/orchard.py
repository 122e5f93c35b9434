"""Builders of Orchard's cases: hosts of a static pool with three vms each."""

from typing import Any

from tests.rules.playing import Document, a_scenario, a_slot, submit

A, B, C = "lab-1", "lab-2", "lab-3"
HOSTS = {
    "lab": {
        "system": "x86_64-linux",
        "provider": "static",
        "max_leases_per_slot": 100,
        "lease_ttl": 0,
        "offline_timeout": 180,
    }
}


def a_case(*timeline: Document, **parts: Any) -> Document:
    """Hosts of a static pool with room for 100 leases each; `lab` changes the pool."""
    pools = {"lab": {**HOSTS["lab"], **parts.pop("lab", {})}}
    return a_scenario(*timeline, pools=pools, **parts)


def host(name: str, *holders: str, **fields: Any) -> Document:
    """A host of 3 vms by default."""
    return a_slot(name, "ready", *holders, **{"pool": "lab", "resources": {"vms": 3}} | fields)


def ask(at: float, *names: str, **fields: Any) -> Document:
    """Reservations of one vm by default."""
    return submit(at, *names, **{"resources": {"vms": 1}} | fields)


def held(name: str, vms: float = 1, **fields: Any) -> Document:
    return {"id": name, "system": "x86_64-linux", "phase": "leased", "resources": {"vms": vms}} | fields
