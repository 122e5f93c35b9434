"""The queues `size` and `dynsize`, by Zoe's rules."""

from collections.abc import Sequence
from typing import Any

import pytest

from scheduler.simulation.runner import play
from scheduler.simulation.scenario import read_scenario

Line = dict[str, Any]

LAB: Line = {
    "system": "sim",
    "provider": "static",
    "max_leases_per_slot": 100,
    "lease_ttl": 0,
    "offline_timeout": 1e9,
    "resources": {"cpus": 1000, "memory_mib": 1_000_000, "places": 1},
}
A_MOMENT = 1e-6
"""How long each one runs: no size falls by as much as 1 in this time."""


def a_job(name: str, cpus: float = 1, memory_mib: float | None = 1, count: int = 1, **more: Any) -> Line:
    """A reservation whose instances together need the only lease of the lab."""
    resources = {"places": 1 / count, "cpus": cpus} | ({} if memory_mib is None else {"memory_mib": memory_mib})
    return {
        "id": name,
        "system": "sim",
        "runtime": A_MOMENT,
        "components": [{"name": "core", "count": count, "resources": resources}],
        **more,
    }


def play_one_by_one(queue: str, submitted: Sequence[tuple[float, Line]], free_at: float, **parts: Any) -> list[str]:
    """Return the order in which they are served once the lab is free at `free_at`."""
    scenario = {
        "kicks": True,
        "config": {
            "scheduler": {"queue": queue, **parts.pop("scheduler", {})},
            "pools": {"lab": {**LAB, **parts.pop("pool", {})}},
        },
        "slots": [{"id": "lab-1", "pool": "lab", "leases": [{"reservation": "old", "component": "core"}]}],
        "reservations": [a_job("old", phase="leased", runtime=None)],
        "timeline": [
            *({"at": at, "submit": job} for at, job in submitted),
            {"at": free_at, "release": "old"},
            {"at": free_at + 1, "tick": True},
        ],
    }
    lines = play(read_scenario(scenario))
    return [line["reservation"] for line in lines if line.get("event") == "reservation_leased"]


def test_size_serves_the_smaller_one_first() -> None:
    submitted = [(0, a_job("nine", size=9)), (0, a_job("one", size=1)), (1, a_job("other-one", size=1))]
    assert play_one_by_one("size", submitted, free_at=2) == ["one", "other-one", "nine"]


@pytest.mark.parametrize(
    ("submitted", "free_at", "served"),
    [
        # 32768 − 256 × 100 = 7168, against 8192
        ([(0, a_job("old-one", 1, 32768)), (100, a_job("young", 1, 8192))], 100, ["old-one", "young"]),
        # 32768 − 256 × 95 = 8448, against 8192
        ([(0, a_job("old-one", 1, 32768)), (95, a_job("young", 1, 8192))], 95, ["young", "old-one"]),
        # both have come to 0: the older one, however large it was
        ([(0, a_job("large", 2, 32768)), (1, a_job("small", 1, 256))], 256, ["large", "small"]),
        # it never grows again: long after 0 a new reservation of any size comes later
        ([(0, a_job("large", 2, 32768)), (5000, a_job("small", 0.001, 1))], 5000, ["large", "small"]),
        # as large, as old: by submission
        ([(0, a_job("b")), (0, a_job("a"))], 0, ["b", "a"]),
        # sums over all instances: 4 × 1 cpus and 4 × 1000 MiB are 16000, 3 and 5000 are 15000
        ([(0, a_job("four", 1, 1000, count=4)), (0, a_job("one", 3, 5000))], 0, ["one", "four"]),
        # memory that no instance requests counts as 1: 100 × 1 against 2 × 60
        ([(0, a_job("both", 2, 60)), (0, a_job("cpus", 100, None))], 0, ["cpus", "both"]),
        # a sum of 0 counts as 1, too: 100 × 1 against 2 × 40, and 1 × 100 against 2 × 40
        ([(0, a_job("none", 100, 0)), (0, a_job("both", 2, 40))], 0, ["both", "none"]),
        ([(0, a_job("none", 0, 100)), (0, a_job("both", 2, 40))], 0, ["both", "none"]),
        # `size` is not read
        ([(0, a_job("large", 2, 60, size=1)), (0, a_job("small", 2, 50, size=9))], 0, ["small", "large"]),
    ],
)
def test_dynsize_serves_the_smaller_present_size_first(
    submitted: Sequence[tuple[float, Line]], free_at: float, served: list[str]
) -> None:
    assert play_one_by_one("dynsize", submitted, free_at) == served


def test_a_wake_up_is_requested_for_the_instant_at_which_a_size_becomes_0() -> None:
    """Without backfill the small one, which does not fit, blocks the old one until its size is 0: 2560 / 256 = 10 s."""
    holders = [{"id": name, "system": "sim", "resources": {"cpus": 1}, "phase": "leased"} for name in ("a", "b")]
    leases = [{"reservation": each["id"]} for each in holders]
    pool = {**LAB, "resources": {"cpus": 2, "memory_mib": 3000}}
    scenario = {
        "kicks": True,
        "wakes": True,
        "config": {"scheduler": {"queue": "dynsize", "backfill": False}, "pools": {"lab": pool}},
        "slots": [{"id": "lab-1", "pool": "lab", "leases": leases}],
        "reservations": holders,
        "timeline": [
            {"at": 0, "submit": {"id": "old-one", "system": "sim", "resources": {"cpus": 1, "memory_mib": 2560}}},
            {"at": 2, "submit": {"id": "small", "system": "sim", "resources": {"cpus": 2, "memory_mib": 640}}},
            {"at": 2, "release": "a"},
        ],
        "until": 60,
    }
    lines = play(read_scenario(scenario))
    leased = [(line["at"], line["reservation"]) for line in lines if line.get("event") == "reservation_leased"]
    assert leased == [(10, "old-one")]


def test_a_component_without_resources_has_the_defaults_of_its_pool() -> None:
    submitted = [(0, a_job("default", 1, None)), (0, a_job("own", 1, 500))]
    assert play_one_by_one("dynsize", submitted, 0) == ["default", "own"]
    pool = {"default_resources": {"memory_mib": 501}}
    assert play_one_by_one("dynsize", submitted, 0, pool=pool) == ["own", "default"]


@pytest.mark.parametrize(
    ("decay", "served"), [(10, ["young", "old-one"]), (10.5, ["old-one", "young"]), (0, ["young", "old-one"])]
)
def test_the_decay_is_a_setting(decay: float, served: list[str]) -> None:
    """2001 that falls for 100 seconds, against 1000."""
    submitted = [(0, a_job("old-one", 1, 2001)), (100, a_job("young", 1, 1000))]
    assert play_one_by_one("dynsize", submitted, 100, scheduler={"dynsize_decay": decay}) == served


def test_systems_have_a_decay_of_their_own() -> None:
    submitted = [(0, a_job("old-one", 1, 2000)), (100, a_job("young", 1, 1000))]
    own = {"system": {"sim": {"queue": "dynsize", "dynsize_decay": 0}}}
    assert play_one_by_one("fifo", submitted, 100, scheduler=own) == ["young", "old-one"]
