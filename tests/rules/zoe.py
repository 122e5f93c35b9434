"""Builders of Zoe's cases: applications of essential and elastic components on slots of `units`."""

from collections.abc import Iterable
from typing import Any

from tests.rules.playing import Document, Played, play_out

MODES = ("rigid", "malleable", "flexible", "yielding")
LAB: Document = {
    "system": "sim",
    "provider": "static",
    "max_leases_per_slot": 100,
    "idle_scale_down": 1e9,
    "lease_ttl": 0,
    "offline_timeout": 1e9,
    "resources": {"units": 10},
}


def component(name: str, count: int, units: float = 1, kind: str = "essential", **fields: Any) -> Document:
    """`count` instances of this number of units."""
    return {"name": name, "count": count, "kind": kind, "resources": {"units": units}, **fields}


def an_application(name: str, core: int, more: int = 0, units: float = 1, **fields: Any) -> Document:
    """`core` essential instances, and `more` elastic ones if any."""
    components = [component("core", core, units)]
    if more:
        components.append(component("more", more, units, "elastic"))
    return {"id": name, "system": "sim", "components": components, **fields}


def submitted(at: float, *applications: Document) -> Document:
    return {"at": at, "submit": list(applications)}


def a_lab(
    *timeline: Document, elastic: str = "yielding", slots: Iterable[float | Document] = (10,), **parts: Any
) -> Document:
    """Slots lab-1, lab-2, … with these units (or other records), without a grace period, played with kicks."""
    records = [
        {"id": f"lab-{number}", "pool": "lab", "resources": {"units": each}} if not isinstance(each, dict) else each
        for number, each in enumerate(slots, 1)
    ]
    scheduler = {"elastic": elastic, "preemption_grace": 0, **parts.pop("scheduler", {})}
    pools = {"lab": {**LAB, **parts.pop("lab", {})}}
    return {
        "kicks": True,
        "config": {"scheduler": scheduler, "pools": pools},
        "slots": records,
        "timeline": list(timeline),
        **parts,
    }


def on_slot(name: str, units: float, *leases: tuple[str, str], **fields: Any) -> Document:
    """A slot record with leases of (reservation, component)."""
    held = [{"reservation": owner, "component": each} for owner, each in leases]
    return {"id": name, "pool": "lab", "resources": {"units": units}, "leases": held, **fields}


def holdings(played: Played) -> dict[str, list[str]]:
    """The leases of each reservation at the end, as `component@slot`."""
    return {
        row["id"]: sorted(f"{lease['component']}@{lease['slot']}" for lease in row["leases"])
        for row in played.state["reservations"]
        if row["leases"]
    }


def decided(document: Document) -> list[str]:
    """`TIME DECISION` of all its ticks."""
    return play_out(document).decisions
