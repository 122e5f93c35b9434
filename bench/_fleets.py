"""The fleets of `bench.plan`. More reservations wait than fit, so that every part of a tick has work."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from msgspec.structs import replace

from scheduler.model.reservations import Component, Request, Reservation
from scheduler.model.rules import Rules, read_rules
from scheduler.model.slots import Slot
from scheduler.model.view import Row

NOW = 1_800_000_000.0
SYSTEMS = ("x86_64-linux", "aarch64-linux", "x86_64-windows")
ZONES = ("a", "b", "c")
LEASES_PER_SLOT = 4
GANG = 32
SMALL_ONES_A_GANG = 100
"""Slots per gang. Fleets with single reservations have ten of them for each slot."""


@dataclass(frozen=True)
class Fleet:
    """Rows and rules of one size, and the simple planners that place by the same rules."""

    slots: Sequence[Slot]
    reservations: Sequence[Reservation]
    rules: Rules
    now: float
    loops: tuple[str, ...]

    @property
    def rows(self) -> list[Row]:
        """Return the rows for a view."""
        return [*self.slots, *self.reservations]


def make_counted(slots: int, pending: int) -> Fleet:
    """Return the autoscaler's fleet: three systems, slots that count leases only, equal requests
    except for the system.
    """
    random = Random(slots)
    pools = {_pool_of(system): {"system": system, "max_leases_per_slot": LEASES_PER_SLOT} for system in SYSTEMS}
    requests = [Request(system=system, components=(Component(name="main"),)) for system in SYSTEMS]
    return _make_fleet(
        pools,
        _make_slots(slots, lambda _: {"state": "ready"}),
        _make_reservations(random, pending, requests),
        ("first_fit", "sorting"),
    )


def make_sized(slots: int, pending: int, scheduler: dict[str, Any] | None = None) -> Fleet:
    """Orchard's: cpus and memory of different sizes, labels that some require and some prefer, many on one slot."""
    random = Random(slots)
    held: tuple[dict[str, float], ...] = ({"cpus": 8, "memory_mib": 16384}, {"cpus": 16, "memory_mib": 65536})
    sizes: tuple[dict[str, float], ...] = (
        {"cpus": 2, "memory_mib": 4096},
        {"cpus": 4, "memory_mib": 4096},
        {"memory_mib": 12288},
    )
    keys = {"default_resources": {"cpus": 1}, "resources": held[0]}
    pools = {_pool_of(system): {"system": system, **keys} for system in SYSTEMS}
    requests = [
        Request(
            system=system, components=(Component(name="main", resources=resources),), labels=labels, prefers=prefers
        )
        for system in SYSTEMS
        for resources in sizes
        for labels in ({}, {"zone": "a"}, {"disk": "ssd"})
        for prefers in ({}, {"zone": "b"})
    ]

    def describe(_: int) -> dict[str, Any]:
        labels = {"zone": random.choice(ZONES)} | random.choice(({}, {"disk": "ssd"}))
        return {"state": "ready", "resources": random.choice(held), "labels": labels}

    return _make_fleet(
        pools,
        _make_slots(slots, describe),
        _make_reservations(random, pending, requests),
        ("sorting",),
        {"scheduler": scheduler or {}},
    )


def make_prioritized(slots: int, pending: int) -> Fleet:
    """Return the fleet of `make_sized` under the queue `priority`, with nine priorities."""
    fleet, random = make_sized(slots, pending, {"queue": "priority"}), Random(pending)
    rows = [replace(each, priority=random.randint(1, 9)) for each in fleet.reservations]
    return dataclasses.replace(fleet, reservations=rows, loops=())


def make_empty(slots: int, pending: int) -> Fleet:
    """Arvados': nothing runs yet, so that all that fits within `max_slots` is launched, by the cheapest offering."""
    random = Random(slots)
    offerings = [
        {
            "name": name,
            "market": market,
            "price": price * factor,
            "resources": {"cpus": cpus, "memory_mib": cpus * 2048},
        }
        for name, price, cpus in (("small", 0.1, 2), ("medium", 0.19, 4), ("large", 0.4, 8))
        for market, factor in (("spot", 0.4), ("on-demand", 1.0))
    ]
    pools = {_pool_of(system): {"system": system, "offerings": offerings} for system in SYSTEMS}
    requests = [
        Request(system=system, components=(Component(name="main", resources={"cpus": cpus, "memory_mib": memory}),))
        for system in SYSTEMS
        for cpus, memory in ((1, 1024), (2, 4096), (4, 2048), (8, 8192))
    ]
    return _make_fleet(
        pools, _make_slots(slots, lambda _: {"state": "empty"}), _make_reservations(random, pending, requests), ()
    )


def make_gangs(slots: int, pending: int) -> Fleet:
    """Zoe's: gangs of 32 instances, one for ten slots. A third of them fits where a slot takes one instance, by its
    leases or by its cpus; all of them do where it has four cpus. One principal has all gangs, and no work budget ends
    its tick.
    """
    return _make_gangs(slots, pending, (Component(name="rank", count=GANG),), {})


def make_elastic(slots: int, pending: int) -> Fleet:
    """The same with half of each gang elastic, under `flexible`: what is left of the room goes to these."""
    parts = (
        Component(name="rank", count=GANG // 2),
        Component(name="more", count=GANG // 2, kind="elastic"),
    )
    return _make_gangs(slots, pending, parts, {"elastic": "flexible"})


def _make_gangs(slots: int, pending: int, parts: tuple[Component, ...], scheduler: dict[str, Any]) -> Fleet:
    cpus = dict(zip(SYSTEMS, (None, 1, 4), strict=True))
    pools: dict[str, dict[str, Any]] = {
        _pool_of(system): {"system": system} if held is None else {"system": system, "resources": {"cpus": held}}
        for system, held in cpus.items()
    }
    requests = [
        Request(system=system, components=tuple(replace(part, resources={"cpus": 1} if held else {}) for part in parts))
        for system, held in cpus.items()
    ]
    return _make_fleet(
        pools,
        _make_slots(slots, lambda _: {"state": "ready"}),
        _make_reservations(Random(slots), max(1, pending // SMALL_ONES_A_GANG), requests),
        (),
        {"scheduler": scheduler, "limits": {"work_per_tick": 0}},
    )


FLEETS: dict[str, Callable[[int, int], Fleet]] = {
    "counted": make_counted,
    "sized": make_sized,
    "prioritized": make_prioritized,
    "empty": make_empty,
    "gangs": make_gangs,
    "elastic": make_elastic,
}


def _pool_of(system: str) -> str:
    return f"pool-{system}"


def _make_fleet(
    pools: dict[str, dict[str, Any]],
    slots: list[Slot],
    reservations: list[Reservation],
    loops: tuple[str, ...],
    settings: dict[str, Any] | None = None,
) -> Fleet:
    """Each pool is as large as the slots that it has here, so that none may be launched beyond them."""
    for name, keys in pools.items():
        keys["max_slots"] = sum(slot.pool == name for slot in slots)
    return Fleet(slots, reservations, read_rules({**(settings or {}), "pools": pools}), NOW, loops)


def _make_slots(count: int, describe: Callable[[int], dict[str, Any]]) -> list[Slot]:
    pools = [_pool_of(system) for system in SYSTEMS]
    found = []
    for index in range(count):
        number, pool = index // len(pools) + 1, pools[index % len(pools)]
        keys = describe(index)
        found.append(Slot(id=f"{pool}-{number}", pool=pool, epoch=int(keys["state"] == "ready"), since=NOW, **keys))
    return found


def _make_reservations(random: Random, count: int, requests: Sequence[Request]) -> list[Reservation]:
    """One after the other, each with a request of its own, as they come out of a database."""
    return [
        Reservation(
            id=f"r{index}",
            sequence=index,
            request=random.choice(requests),
            created_at=NOW - 600 + index * 600 / count,
            changed_at=NOW,
        )
        for index in range(count)
    ]
