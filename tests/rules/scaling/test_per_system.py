"""`scheduler.system`: the same keys per system, overriding; several queues in one plan."""

from typing import Any

import pytest

from scheduler.model.validation import InvalidInputError
from tests.rules.playing import Document, a_pool, a_scenario, a_slot, act, play_out, reported, submit, tick, ticks

POOLS = {"linux": a_pool(max_slots=2), "mac": a_pool(system="macos", max_slots=2)}


def both(at: float, name: str, **fields: Any) -> list[Document]:
    """The same request on both systems."""
    return [submit(at, f"l-{name}", **fields), submit(at, f"m-{name}", **fields | {"system": "macos"})]


def test_each_system_has_its_own_queue() -> None:
    assert reported(
        *both(0, "old"),
        *both(1, "urgent", priority=9),
        tick(2),
        pools={"linux": a_pool(max_slots=1), "mac": a_pool(system="macos", max_slots=1)},
        scheduler={"system": {"macos": {"queue": "priority"}}},
        slots=[a_slot("linux-1"), a_slot("mac-1")],
    ) == [["assign l-old linux-1", "assign m-urgent mac-1", "l-urgent waits at_max_slots", "m-old waits at_max_slots"]]


def test_a_request_that_names_a_pool_is_in_the_queue_of_its_system() -> None:
    assert reported(
        {"at": 0, "submit": [{"id": "old", "pool": "mac"}, {"id": "urgent", "pool": "mac", "priority": 9}]},
        tick(0),
        pools=POOLS,
        scheduler={"system": {"macos": {"queue": "priority", "max_slots": 1}}},
        slots=[a_slot("mac-1")],
    ) == [["assign urgent mac-1", "old waits at_max_slots"]]


def test_backfill_off_blocks_its_own_queue_only() -> None:
    big, small = {"resources": {"cpus": 4}}, {"resources": {"cpus": 1}}
    pool = {"max_slots": 1, "resources": {"cpus": 4}}
    assert reported(
        *both(0, "big", **big),
        *both(0, "small", **small),
        tick(0),
        pools={"linux": a_pool(**pool), "mac": a_pool(system="macos", **pool)},
        scheduler={"system": {"macos": {"backfill": False}}},
        slots=[a_slot("linux-1", resources={"cpus": 1}), a_slot("mac-1", resources={"cpus": 1})],
    ) == [
        [
            *("assign l-small linux-1", "l-big waits at_max_slots"),
            *("m-big waits at_max_slots", "m-small waits behind_queue"),
        ]
    ]


def test_the_profile_is_that_of_the_system() -> None:
    pools = {"linux": a_pool(max_leases_per_slot=9), "mac": a_pool(system="macos", max_leases_per_slot=9)}
    assert reported(
        *both(0, "r1"),
        *both(0, "r2"),
        tick(0),
        pools=pools,
        scheduler={"system": {"macos": {"profile": "spread"}}},
        slots=[a_slot(name) for name in ("linux-1", "linux-2", "mac-1", "mac-2")],
    ) == [["assign l-r1 linux-1", "assign l-r2 linux-1", "assign m-r1 mac-1", "assign m-r2 mac-2"]]


def test_max_slots_of_a_system_counts_its_pools_and_the_common_one_counts_all() -> None:
    pools = {"linux": a_pool(), "mac": a_pool(system="macos"), "mini": a_pool(system="macos")}
    asked = [*both(0, "r1"), *both(0, "r2"), *both(0, "r3")]
    own = {"system": {"macos": {"max_slots": 2}}}
    launched = [each for each in reported(*asked, tick(0), pools=pools, scheduler=own)[0] if "launch" in each]
    assert launched == [f"launch {name} demand" for name in ("linux-1", "linux-2", "linux-3", "mac-1", "mac-2")]
    both_limits = {**own, "max_slots": 4}
    launched = [each for each in reported(*asked, tick(0), pools=pools, scheduler=both_limits)[0] if "launch" in each]
    assert launched == [f"launch {name} demand" for name in ("linux-1", "linux-2", "linux-3", "mac-1")]


def test_restarts_and_confirmations_follow_the_settings_of_the_system() -> None:
    """One reservation does not restart a second time within an hour, the other does at once."""
    played = play_out(
        a_scenario(
            *both(0, "r", restart_policy="on_failure"),
            tick(0),
            *(act(1, "fail", {"reservation": name}) for name in ("l-r", "m-r")),
            tick(1),
            *(act(2, "fail", {"reservation": name}) for name in ("l-r", "m-r")),
            *ticks(3, 3),
            pools=POOLS,
            scheduler={"restart_delay": "1h", "system": {"macos": {"restart_delay": 0, "confirm_timeout": 50}}},
            slots=[a_slot("linux-1"), a_slot("mac-1")],
        )
    )
    assert played.phases == {"l-r": "failed", "m-r": "leased"}
    later = play_out(
        a_scenario(
            *both(0, "r"),
            *ticks(0, 50),
            pools=POOLS,
            scheduler={"system": {"macos": {"confirm_timeout": 50}}},
            slots=[a_slot("linux-1"), a_slot("mac-1")],
        )
    )
    assert [each for each in later.decisions if "requeue" in each] == ["50 requeue m-r unconfirmed"]


def test_a_nested_system_table_and_unknown_keys_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"config.scheduler.system.macos.system: expected a known key"):
        play_out(a_scenario(tick(0), scheduler={"system": {"macos": {"system": {}}}}))
