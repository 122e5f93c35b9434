"""The loads that `bench.monsters_stack` submits, and the pools that they meet."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from bench._monster_fleets import CPUS, MOST_INSTANCES
from bench._stack import SYSTEM

SLOTS: Final = 1_000
"""Slots of the pool, each of 16 cpus."""
GANGS: Final = 199
"""Just below `limits.instances_per_principal`, which the small reservations of unsigned producers share."""
ELASTIC: Final = 2_000
SMALL: Final = {"cpus": 0.01}
"""What a small reservation of the other producer asks for."""
FULL: Final = CPUS * SLOTS / MOST_INSTANCES
"""Cpus of one instance, if a gang of 10,000 fills all slots."""


@dataclass(frozen=True)
class Load:
    """What one producer submits, and on which pool."""

    about: str
    monsters: tuple[dict[str, Any], ...]
    pool: dict[str, Any] = field(default_factory=lambda: STATIC)
    others: str | None = None
    """The system of a pool with one slot for the small reservations alone; None: they share the pool."""


STATIC: Final[dict[str, Any]] = {
    "system": SYSTEM,
    "provider": "static",
    "max_leases_per_slot": 10_000,
    "offline_timeout": 36_000.0,
    "max_slots": SLOTS,
}
"""All slots are ready: hosts register, and no agent runs for them."""
LAUNCHED: Final[dict[str, Any]] = {
    "system": SYSTEM,
    "min_slots": 1,
    "max_slots": SLOTS,
    "max_leases_per_slot": 10_000,
    "resources": {"cpus": CPUS},
    "ec2": {"image": "ami-0123456789abcdef0"},
}
"""One slot is ready; all others are empty."""


def _gangs(sizes: Iterable[float]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"system": SYSTEM, "components": [{"name": "rank", "count": MOST_INSTANCES, "resources": {"cpus": cpus}}]}
        for cpus in sizes
    )


def _elastic(count: int) -> tuple[dict[str, Any], ...]:
    parts = [
        {"name": "main", "resources": {"cpus": 0.1}},
        {"name": "more", "kind": "elastic", "count": MOST_INSTANCES - 1, "resources": {"cpus": 0.1}},
    ]
    return tuple({"system": SYSTEM, "components": parts} for _ in range(count))


_DIFFERENT = tuple(FULL * 1.2 * (1 - at / 10_000) for at in range(GANGS))

LOADS: Final[dict[str, Load]] = {
    "too-large": Load("gangs of 10,000, each of another size, none fits", _gangs(_DIFFERENT)),
    "partly": Load("gangs of 10,000, of which five fit at once", _gangs([FULL / 5.2] * GANGS)),
    "whole": Load("gangs of 10,000, of which one fits at a time", _gangs([FULL * 0.95] * GANGS)),
    "elastic": Load("1 essential and 9,999 elastic instances", _elastic(ELASTIC)),
    "empty-too-large": Load("the gangs that do not fit, before empty slots", _gangs(_DIFFERENT), LAUNCHED),
    "empty-elastic": Load(
        "the elastic ones before empty slots, of which ten may be launched",
        _elastic(ELASTIC),
        LAUNCHED | {"launch_for_elastic": True, "max_slots": 10},
        others="small",
    ),
}
