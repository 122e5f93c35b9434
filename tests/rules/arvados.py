"""Builders of Arvados' cases: offerings t1 … t16, queue `priority`, one lease a slot."""

from typing import Any

from tests.rules.playing import Document, a_scenario, a_slot, act, submit

SIZES = (1, 2, 3, 4, 8, 16)
EIGHT = {"max_leases_per_slot": 8}
SLOW = {"boot": 99, "terminate": 5}


def types(*sizes: int, **fields: Any) -> list[Document]:
    """Offerings t1 … t16: N cpus, N x 1100 MiB, price N."""
    return [
        {"name": f"t{size}", "price": size, "resources": {"cpus": size, "memory_mib": 1100 * size}} | fields
        for size in sizes
    ]


def c(priority: int, cpus: float = 1, at: float = 0, **fields: Any) -> Document:
    """c4 = priority 4; by default one cpu and 1000 MiB."""
    resources = {"cpus": cpus, "memory_mib": 1000}
    return submit(at, f"c{priority}", priority=priority, resources=resources, **fields)


def t(name: str, size: int, state: str = "ready", *holders: str, **fields: Any) -> Document:
    """A slot that was launched from offering tN."""
    return a_slot(name, state, *holders, offering=f"t{size}", **fields)


def a_case(*timeline: Document, **parts: Any) -> Document:
    """Queue `priority`, all offerings; by default one lease a slot."""
    pool = {"offerings": types(*SIZES), "max_leases_per_slot": 1, **parts.pop("pool", {})}
    scheduler = {"queue": "priority", **parts.pop("scheduler", {})}
    return a_scenario(*timeline, pool=pool, scheduler=scheduler, **parts)


def an_outage(error: str, until: float = 9999, at: float = 0, **fields: object) -> Document:
    return act(at, "outage", {"pool": "linux", "error": error, "until": until} | fields)
