"""The stopped tier: which machines are stopped, launched for the tier, started and ended."""

from typing import Any

import pytest

from tests.rules.playing import (
    SYSTEM,
    Cases,
    Document,
    a_holder,
    a_pool,
    a_scenario,
    a_slot,
    act,
    play_out,
    submit,
    tick,
    ticks,
)

SMALL: Document = {"name": "small", "market": "on-demand", "price": 1.0, "resources": {"cpus": 2}}
LARGE: Document = {"name": "large", "market": "on-demand", "price": 2.0, "resources": {"cpus": 8}}
SPOT: Document = {"name": "cheap", "market": "spot", "price": 0.2, "resources": {"cpus": 2}}
CLOUD: Document = {"launch": 1, "boot": 60, "bind": 5, "stop": 20, "start": 10, "terminate": 5}


def a_tier(count: int = 1, **changes: Any) -> Document:
    """A pool of on-demand machines with a stopped tier."""
    return a_pool(stopped_slots=count, idle_scale_down=30, **{"offerings": [SMALL]} | changes)


def stopped(name: str, offering: str = "small", **fields: Any) -> Document:
    """A slot whose machine is stopped."""
    return a_slot(name, "stopped", offering=offering, **fields)


def idle(name: str, offering: str = "small", **fields: Any) -> Document:
    """A ready slot without leases."""
    return a_slot(name, "ready", offering=offering, **fields)


def play(*timeline: Document, **parts: Any) -> list[list[str]]:
    """For each tick its decisions, then the waits; `pool` replaces the pool."""
    pool = parts.pop("pool", None) or a_tier()
    return play_out(a_scenario(*timeline, **{"pools": {"linux": pool}, "cloud": CLOUD} | parts)).ticks


CASES: Cases = {
    "a missing machine is launched": (
        a_scenario(tick(0), pools={"linux": a_tier(2)}, cloud=CLOUD),
        [["launch linux-1 small stopped", "launch linux-2 small stopped"]],
    ),
    "no tier, no launch": (a_scenario(tick(0), pools={"linux": a_tier(0)}, cloud=CLOUD), [[]]),
    "a full tier is left alone": (
        a_scenario(tick(0), pools={"linux": a_tier()}, slots=[stopped("linux-1")], cloud=CLOUD),
        [[]],
    ),
    "the surplus of scale-in is stopped before a machine is launched": (
        a_scenario(*ticks(0, 31), pools={"linux": a_tier()}, slots=[idle("linux-1")], cloud=CLOUD),
        [[], ["stop linux-1 idle"]],
    ),
    "the surplus beyond the tier drains": (
        a_scenario(tick(31), pools={"linux": a_tier()}, slots=[idle("linux-1"), idle("linux-2")], cloud=CLOUD),
        [["stop linux-1 idle", "drain linux-2 idle"]],
    ),
    "longest idle first": (
        a_scenario(
            tick(31),
            pools={"linux": a_tier()},
            slots=[idle("linux-1", idle_since=0), idle("linux-2", idle_since=-9)],
            cloud=CLOUD,
        ),
        [["stop linux-2 idle", "drain linux-1 idle"]],
    ),
    "no stop below the minimum": (
        a_scenario(tick(31), pools={"linux": a_tier(min_slots=1)}, slots=[idle("linux-1")], cloud=CLOUD),
        [["launch linux-2 small stopped"]],
    ),
    "no stop of the warm reserve": (
        a_scenario(tick(31), pools={"linux": a_tier(target_warm_slots=1)}, slots=[idle("linux-1")], cloud=CLOUD),
        [["launch linux-2 small stopped"]],
    ),
    "a spot machine is never stopped": (
        a_scenario(
            tick(31), pools={"linux": a_tier(offerings=[SPOT, SMALL])}, slots=[idle("linux-1", "cheap")], cloud=CLOUD
        ),
        [["launch linux-2 small stopped", "drain linux-1 idle"]],
    ),
    "too many are terminated, the dearest first": (
        a_scenario(
            tick(0),
            pools={"linux": a_tier(offerings=[SMALL, LARGE])},
            slots=[stopped("linux-1"), stopped("linux-2", "large"), stopped("linux-3")],
            cloud=CLOUD,
        ),
        [["terminate linux-2 surplus", "terminate linux-1 surplus"]],
    ),
    "a pool without a tier ends its stopped slots": (
        a_scenario(tick(0), pools={"linux": a_tier(0)}, slots=[stopped("linux-1")], cloud=CLOUD),
        [["terminate linux-1 surplus"]],
    ),
    "a cordoned one does not count": (
        a_scenario(tick(0), pools={"linux": a_tier()}, slots=[stopped("linux-1", cordoned=True)], cloud=CLOUD),
        [["launch linux-2 small stopped"]],
    ),
    "demand starts a stopped slot, and the tier is filled again": (
        a_scenario(submit(0, "r1"), tick(0), pools={"linux": a_tier()}, slots=[stopped("linux-1")], cloud=CLOUD),
        [["start linux-1 small demand", "launch linux-2 small stopped", "r1 waits booting"]],
    ),
    "what does not fit is launched": (
        a_scenario(
            submit(0, "r1", resources={"cpus": 4}),
            tick(0),
            pools={"linux": a_tier(offerings=[SMALL, LARGE])},
            slots=[stopped("linux-1")],
            cloud=CLOUD,
        ),
        [["launch linux-2 large demand", "r1 waits booting"]],
    ),
    "of several that fit the cheapest is started": (
        a_scenario(
            submit(0, "r1"),
            tick(0),
            pools={"linux": a_tier(2, offerings=[SMALL, LARGE])},
            slots=[stopped("linux-1", "large"), stopped("linux-2")],
            cloud=CLOUD,
        ),
        [["start linux-2 small demand", "launch linux-3 small stopped", "r1 waits booting"]],
    ),
    "a start is preferred to a cheaper launch": (
        a_scenario(
            submit(0, "r1"),
            tick(0),
            pools={"linux": a_tier(offerings=[SPOT, SMALL])},
            slots=[stopped("linux-1")],
            cloud=CLOUD,
        ),
        [["start linux-1 small demand", "launch linux-2 small stopped", "r1 waits booting"]],
    ),
    "a gang uses stopped and new slots": (
        a_scenario(
            submit(0, "r1", components=[{"name": "n", "count": 2, "resources": {"cpus": 2}}]),
            tick(0),
            pools={"linux": a_tier(max_slots=2)},
            slots=[stopped("linux-1")],
            cloud=CLOUD,
        ),
        [["start linux-1 small demand", "launch linux-2 small demand", "r1 waits booting"]],
    ),
    "a gang that cannot be complete starts nothing": (
        a_scenario(
            submit(0, "r1", components=[{"name": "n", "count": 3, "resources": {"cpus": 2}}]),
            tick(0),
            pools={"linux": a_tier(max_slots=2)},
            slots=[stopped("linux-1")],
            cloud=CLOUD,
        ),
        [["r1 waits at_max_slots"]],
    ),
    "the minimum starts a stopped slot": (
        a_scenario(tick(0), pools={"linux": a_tier(min_slots=1)}, slots=[stopped("linux-1")], cloud=CLOUD),
        [["start linux-1 small minimum", "launch linux-2 small stopped"]],
    ),
    "the reserve does not start what is too dear for it": (
        a_scenario(
            tick(0),
            pools={"linux": a_tier(offerings=[SPOT, SMALL], target_warm_slots=1)},
            slots=[stopped("linux-1")],
            cloud=CLOUD,
        ),
        [["launch linux-2 cheap warm"]],
    ),
    "a stopped slot counts towards max_slots, and goes for demand that it cannot serve": (
        a_scenario(
            submit(0, "r1", resources={"cpus": 4}),
            *ticks(0, 5),
            pools={"linux": a_tier(offerings=[SMALL, LARGE], max_slots=1)},
            slots=[stopped("linux-1")],
            cloud=CLOUD,
        ),
        [["terminate linux-1 at_quota", "r1 waits at_max_slots"], ["launch linux-1 large demand", "r1 waits booting"]],
    ),
    "an old image is replaced in the tier first": (
        a_scenario(
            tick(0),
            tick(5),
            pools={"linux": a_tier(replacement={"drift": "replace", "disruption_budget": 1})},
            slots=[stopped("linux-1", drifted=True), idle("linux-2", drifted=True)],
            cloud=CLOUD,
        ),
        [["terminate linux-1 drifted"], ["launch linux-1 small stopped"]],
    ),
    "a drifted machine is not stopped": (
        a_scenario(
            tick(31),
            pools={"linux": a_tier(replacement={"drift": "replace", "disruption_budget": 0})},
            slots=[idle("linux-1", drifted=True)],
            cloud=CLOUD,
        ),
        [["launch linux-2 small stopped", "drain linux-1 idle"]],
    ),
    "an operator's drain ends a stopped slot": (
        a_scenario(act(0, "drain", "linux-1"), tick(1), pools={"linux": a_tier()}, slots=[stopped("linux-1")]),
        [["terminate linux-1 requested", "launch linux-2 small stopped"]],
    ),
    "a rebalance recommendation does not concern a stopped slot": (
        a_scenario(act(0, "rebalance", "linux-1"), tick(1), pools={"linux": a_tier()}, slots=[stopped("linux-1")]),
        [[]],
    ),
    "a stopped slot of an offering that is gone ends": (
        a_scenario(tick(0), pools={"linux": a_tier()}, slots=[stopped("linux-1", "old", market="on-demand")]),
        [["terminate linux-1 unconfigured", "launch linux-2 small stopped"]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_tick_keeps_and_uses_the_stopped_tier(name: str) -> None:
    document, expected = CASES[name]
    assert play_out(document).ticks == expected


def test_a_machine_of_the_tier_boots_once_stops_and_starts_faster_than_a_launch() -> None:
    document = a_scenario(
        tick(0), submit(200, "r1"), tick(400), pools={"linux": a_tier()}, cloud=CLOUD, kicks=True, wakes=True
    )
    played = play_out(document)
    assert played.decisions[:5] == [
        "0 launch linux-1 small stopped",
        "66 stop linux-1 booted",
        "200 start linux-1 small demand",
        "200 launch linux-2 small stopped",
        "215 assign r1 linux-1",
    ]
    assert "86 slot_stop_done linux-1" in played.events
    assert played.slots == {"linux-1": "ready r1", "linux-2": "stopped"}


def test_a_slot_is_not_started_before_its_stop_is_confirmed() -> None:
    timeline = (tick(31), submit(32, "r1"), tick(33))
    assert play(*timeline, slots=[idle("linux-1")]) == [
        ["stop linux-1 idle"],
        ["launch linux-2 small demand", "r1 waits booting"],
    ]


def test_a_machine_that_does_not_stop_is_terminated_after_the_timeout() -> None:
    pool = a_tier(terminating_timeout=15)
    found = play(tick(31), tick(45), tick(46), pool=pool, slots=[idle("linux-1")])
    assert [each[:1] for each in found] == [["stop linux-1 idle"], [], ["terminate linux-1 timeout"]]


def test_a_refused_start_holds_the_offering_and_the_demand_is_launched_as_another_one() -> None:
    outage = act(0, "outage", {"pool": "linux", "offering": "small", "error": "capacity", "until": 500})
    pool = a_tier(offerings=[SMALL, LARGE], price_factor=3)
    document = a_scenario(
        outage, submit(1, "r1"), tick(9), pools={"linux": pool}, slots=[stopped("linux-1")], cloud=CLOUD, kicks=True
    )
    played = play_out(document)
    assert played.decisions[0] == "1 start linux-1 small demand"
    assert "1 slot_stopped linux-1" in played.events
    assert "2 launch linux-2 large demand" in played.decisions, "linux-2 was launched for the tier, and refused"
    assert played.slots["linux-1"] == "stopped"


@pytest.mark.parametrize(
    ("is_permitted", "first"), [(True, "start linux-1 large demand"), (False, "r1 waits capacity")]
)
def test_a_slot_is_resized_only_if_its_pool_permits_it(is_permitted: bool, first: str) -> None:
    hold = {"pool": "linux", "kind": "capacity", "subject": "small", "until": 500}
    pool = a_tier(offerings=[SMALL, LARGE], resize_stopped=is_permitted, price_factor=2 if is_permitted else 1)
    found = play(submit(0, "r1"), tick(0), pool=pool, slots=[stopped("linux-1")], holds=[hold])
    assert found[0][0] == first


def test_the_tier_gets_no_machine_while_launches_for_reservations_are_withheld() -> None:
    slots = [idle("linux-1", leases=[{"reservation": "r0"}])]
    found = play(
        submit(0, "r1", resources={"cpus": 2}),
        tick(0),
        pool=a_tier(max_slots=1, max_leases_per_slot=1),
        slots=slots,
        reservations=[a_holder("r0")],
    )
    assert found == [["r1 waits at_max_slots"]]


def test_a_start_needs_quota_and_not_a_slot() -> None:
    """EC2's quota counts running machines, and a stopped slot has its place within `max_slots` already."""
    hold = {"pool": "linux", "kind": "quota", "subject": "on-demand", "until": 500}
    parts: Document = {"pool": a_tier(max_slots=1), "slots": [stopped("linux-1")]}
    assert play(submit(0, "r1"), tick(0), **parts, holds=[hold]) == [["r1 waits at_max_slots"]]
    assert play(submit(0, "r1"), tick(0), **parts)[0][0] == "start linux-1 small demand"


OVER: Document = {"pool": "linux", "kind": "quota", "subject": "on-demand:other", "until": 0}
"""A back-off for EC2's quota that is over when the play begins."""


def test_after_a_back_off_for_a_quota_one_start_is_the_trial() -> None:
    """No other start or launch follows in its tick; its success ends the back-off, so that the next tick goes on."""
    found = play(
        submit(0, "r1", "r2", "r3"),
        *ticks(0, 1),
        pool=a_tier(2, max_leases_per_slot=1),
        slots=[stopped("linux-1"), stopped("linux-2")],
        holds=[OVER],
    )
    waits = ["r1 waits booting", "r2 waits at_quota", "r3 waits at_quota"]
    assert found[0] == ["start linux-1 small demand", *waits]
    assert found[1][:2] == ["start linux-2 small demand", "launch linux-3 small demand"]


def test_the_success_of_a_start_ends_a_back_off_that_ended_early_because_fewer_slots_are_active() -> None:
    """EC2 allows one machine, that of r0. When it ends, a start is the trial, and the next tick goes on without one."""
    played = play_out(
        a_scenario(
            submit(0, "r1", "r2"),
            *ticks(0, 0),
            act(5, "lose", "linux-2"),
            *ticks(6, 7),
            pools={"linux": a_tier(max_leases_per_slot=1)},
            slots=[stopped("linux-1"), idle("linux-2", leases=[{"reservation": "r0"}])],
            reservations=[a_holder("r0")],
            cloud={"quota": 1},
        )
    )
    assert [each for each in played.decisions if each.startswith("6 start")] == ["6 start linux-1 small demand"]
    assert [each for each in played.decisions if each.startswith("7")] == [
        "7 assign r1 linux-1",
        "7 launch linux-2 small demand",
        "7 launch linux-3 small stopped",
    ]


def test_the_trial_of_a_gang_is_the_start_of_its_first_slot() -> None:
    found = play(
        submit(0, "gang", components=[{"name": "main", "count": 2}]),
        tick(0),
        pool=a_tier(2, max_leases_per_slot=1),
        slots=[stopped("linux-1"), stopped("linux-2")],
        holds=[OVER],
    )
    assert found == [["start linux-1 small demand", "gang waits at_quota"]]


def test_a_start_waits_while_a_launch_is_the_trial_of_its_quota() -> None:
    """The launch came first because the stopped slot is too small for its reservation."""
    found = play(
        submit(0, "large", resources={"cpus": 8}),
        submit(0, "small"),
        tick(0),
        pool=a_tier(max_leases_per_slot=1, offerings=[SMALL, LARGE]),
        slots=[stopped("linux-1")],
        holds=[OVER],
    )
    assert found == [["launch linux-2 large demand", "large waits booting", "small waits at_quota"]]


@pytest.mark.parametrize(
    ("dollars", "expected"),
    [(0.5, ["r1 waits over_budget"]), (1.0, ["start linux-1 small demand", "r1 waits booting"])],
)
def test_a_budget_counts_a_start_and_no_stopped_machine(dollars: float, expected: list[str]) -> None:
    """Two stopped machines cost nothing of it; the launch that would fill the tier again is over it."""
    slots = [stopped("linux-1"), stopped("linux-2")]
    document = a_scenario(submit(0, "r1"), tick(0), pools={"linux": a_tier(2)}, slots=slots, cloud=CLOUD)
    document["config"]["budgets"] = {"all": {"per_hour": dollars}}
    assert play_out(document).ticks == [expected]


def test_a_stopped_machine_that_ends_in_this_tick_costs_nothing_of_a_budget() -> None:
    document = a_scenario(submit(0, "r1"), tick(0), pools={"linux": a_tier(0)}, slots=[stopped("linux-1")], cloud=CLOUD)
    document["config"]["budgets"] = {"all": {"per_hour": 1.0}}
    assert play_out(document).ticks == [
        ["terminate linux-1 surplus", "launch linux-2 small demand", "r1 waits booting"]
    ]


def test_a_machine_that_is_too_old_before_it_is_ready_for_the_tier_causes_a_tick_that_launches_another() -> None:
    pool = a_tier(replacement={"max_age": 10, "max_age_jitter": 0})
    played = play_out(a_scenario(*ticks(0, 1), pools={"linux": pool}, cloud=CLOUD, wakes=True, until=15))
    assert played.decisions == ["0 launch linux-1 small stopped", "10 launch linux-2 small stopped"]


def test_the_slot_that_was_stopped_first_is_the_first_to_end_for_a_launch_beyond_max_slots() -> None:
    slots = [stopped("linux-1", idle_since=0), stopped("linux-2", idle_since=-9)]
    pool = a_tier(2, max_slots=2, offerings=[SMALL, LARGE])
    assert play(submit(0, "r1", resources={"cpus": 8}), tick(0), pool=pool, slots=slots) == [
        ["terminate linux-2 at_quota", "r1 waits at_max_slots"]
    ]


def test_the_minimum_starts_a_stopped_slot_that_could_serve_a_protected_gang() -> None:
    """The guard would keep the slot for the gang, as it would keep a slot that is launched for the minimum."""
    found = play(
        submit(0, "gang", components=[{"name": "main", "count": 3}]),
        tick(30),
        pool=a_tier(max_slots=2, min_slots=1, max_leases_per_slot=1),
        slots=[stopped("linux-1")],
        scheduler={"starvation_guard": 20},
    )
    assert found == [["start linux-1 small minimum", "gang waits at_max_slots"]]


def test_the_tier_waits_for_launches_that_quota_withholds() -> None:
    big = SMALL | {"name": "big", "resources": {"cpus": 8}}
    hold = {"pool": "linux", "kind": "quota", "subject": "on-demand:other", "until": 500}
    found = play(
        submit(0, "r1", resources={"cpus": 4}),
        tick(0),
        pool=a_tier(2, offerings=[SMALL, big]),
        slots=[idle("linux-1")],
        holds=[hold],
    )
    assert found == [["drain linux-1 at_quota", "r1 waits at_quota"]]


def test_elastic_instances_and_systems_of_other_pools_start_nothing_here() -> None:
    pools = {"linux": a_tier(), "mac": a_pool(system="aarch64-darwin", max_slots=1)}
    document = a_scenario(
        submit(0, "r1", system="aarch64-darwin"), tick(0), pools=pools, slots=[stopped("linux-1")], cloud=CLOUD
    )
    assert play_out(document).ticks == [["launch mac-1 demand", "r1 waits booting"]]
    assert SYSTEM == "x86_64-linux"
