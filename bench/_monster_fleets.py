"""The loads that `bench.monsters` plans: the largest requests of one producer before small ones of others."""

from collections.abc import Callable, Iterable
from typing import Any

from bench._fleets import NOW, Fleet
from scheduler.model.reservations import Component, Request, Reservation
from scheduler.model.rules import read_rules
from scheduler.model.slots import Slot

MOST_INSTANCES = 10_000
"""Instances that one reservation may ask for (`limits.instances_per_reservation`)."""
CPUS = 16
POOL = "monsters"
OTHERS = 100
"""Small reservations that wait behind the monsters."""


def make_equal_gangs(slots: int, monsters: int) -> Fleet:
    """Return a fleet with gangs of 10,000 equal instances, none of which fits."""
    return _make(slots, [_gang(0.01 * slots * CPUS * 1.2 / 160) for _ in range(monsters)])


def make_different_gangs(slots: int, monsters: int) -> Fleet:
    """Return a fleet with gangs of different sizes, the largest first, so that the result of one is no use for the next
    one.
    """
    return _make(slots, [_gang(slots * CPUS * 1.2 / MOST_INSTANCES * (1 - at / 10_000)) for at in range(monsters)])


def make_fitting_gangs(slots: int, monsters: int) -> Fleet:
    """Gangs of 10,000 instances, of which about five fit."""
    return _make(slots, [_gang(slots * CPUS / 5 / MOST_INSTANCES) for _ in range(monsters)])


def make_mixed_gangs(slots: int, monsters: int) -> Fleet:
    """Gangs of 100 components of 100 instances, each component of a size of its own."""

    def parts(at: int) -> Iterable[Component]:
        for number in range(100):
            cpus = slots * CPUS * 1.2 / MOST_INSTANCES * (1 - at / 10_000) * (1 - number / 100_000)
            yield Component(name=f"part{number}", count=100, resources={"cpus": cpus})

    return _make(slots, [tuple(parts(at)) for at in range(monsters)])


def make_launched_gangs(slots: int, monsters: int) -> Fleet:
    """Gangs of 10,000 instances before an empty fleet, none of which fits within `max_slots`."""
    return _make(
        slots,
        [_gang(slots * CPUS * 1.2 / MOST_INSTANCES * (1 - at / 10_000)) for at in range(monsters)],
        state="empty",
    )


def make_elastic(slots: int, monsters: int) -> Fleet:
    """One essential instance that fits, and 9,999 elastic ones, which mostly do not."""
    parts = (
        Component(name="main", resources={"cpus": 0.1}),
        Component(name="more", kind="elastic", count=MOST_INSTANCES - 1, resources={"cpus": 0.1}),
    )
    return _make(slots, [parts for _ in range(monsters)])


def make_elastic_different(slots: int, monsters: int) -> Fleet:
    """The same, each of a size of its own."""

    def parts(at: int) -> tuple[Component, ...]:
        size = {"cpus": 0.1 + at / 100_000}
        return (
            Component(name="main", resources=size),
            Component(name="more", kind="elastic", count=MOST_INSTANCES - 1, resources=size),
        )

    return _make(slots, [parts(at) for at in range(monsters)])


def make_elastic_launching(slots: int, monsters: int) -> Fleet:
    """The same where elastic instances alone may cause launches."""
    fleet = make_elastic(slots, monsters)
    return _make(
        slots, [each.request.components for each in fleet.reservations[:monsters]], keys={"launch_for_elastic": True}
    )


MONSTERS: dict[str, Callable[[int, int], Fleet]] = {
    "equal": make_equal_gangs,
    "different": make_different_gangs,
    "fitting": make_fitting_gangs,
    "mixed": make_mixed_gangs,
    "launched": make_launched_gangs,
    "elastic": make_elastic,
    "elastic-different": make_elastic_different,
    "elastic-launching": make_elastic_launching,
}


def _gang(cpus: float) -> tuple[Component, ...]:
    return (Component(name="rank", count=MOST_INSTANCES, resources={"cpus": cpus}),)


def _make(
    slots: int, monsters: list[tuple[Component, ...]], state: Any = "ready", keys: dict[str, Any] | None = None
) -> Fleet:
    pool = {"system": "x86_64-linux", "max_slots": slots, "resources": {"cpus": CPUS}, **(keys or {})}
    small = (Component(name="main", resources={"cpus": 0.01}),)
    requests = [*monsters, *(small for _ in range(OTHERS))]
    reservations = [
        Reservation(
            id=f"r{number}",
            sequence=number,
            request=Request(system="x86_64-linux", components=components),
            created_at=NOW - 600 + number / 1000,
            changed_at=NOW,
            principal="greedy" if number < len(monsters) else "other",
        )
        for number, components in enumerate(requests)
    ]
    rows = [
        Slot(id=f"{POOL}-{number}", pool=POOL, epoch=int(state == "ready"), state=state, since=NOW)
        for number in range(1, slots + 1)
    ]
    return Fleet(rows, reservations, read_rules({"pools": {POOL: pool}}), NOW, ())
