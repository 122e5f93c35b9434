"""Machines that are replaced: too old, drifted, or too expensive; and how many at a time."""

import json
from typing import Any
from zlib import crc32

import pytest

from scheduler.model.lives import ReplacementRules, digest_launch, find_drift, find_end_of_life
from scheduler.model.machines import Ec2Rules
from scheduler.model.validation import InvalidInputError
from tests.builders import a_slot as a_row
from tests.builders import some_rules
from tests.rules.playing import Document, a_holder, a_scenario, a_slot, act, play_out, reported, submit, tick, ticks

KEPT = {"idle_scale_down": 1000}
SLOW = {"boot": 9, "terminate": 5}


def a_replacing_pool(budget: Any = 1, *, pool: Document | None = None, **rules: Any) -> Document:
    """A pool that replaces machines; `rules` are its keys about that."""
    return {**KEPT, **(pool or {}), "replacement": {"disruption_budget": budget, "max_age_jitter": 0, **rules}}


def test_a_machine_is_too_old_at_max_age_and_not_before() -> None:
    pool = a_replacing_pool(max_age=100)
    slots = [a_slot("linux-1", launched_at=-50)]
    assert reported(*ticks(49.9, 50), pool=pool, slots=slots) == [[], ["drain linux-1 aged"]]


def test_the_plan_wakes_at_the_end_of_the_first_life_and_at_once_after_a_drain() -> None:
    slots = [a_slot("linux-1", launched_at=-50), a_slot("linux-2", launched_at=-60)]
    played = play_out(
        a_scenario(tick(0), pool=a_replacing_pool(2, max_age=100), slots=slots, wakes=True, until=60, cloud=SLOW)
    )
    assert played.ticks_at == {
        40: ["drain linux-2 aged", "terminate linux-2 drained"],
        50: ["drain linux-1 aged", "terminate linux-1 drained"],
    }


def test_the_plan_wakes_at_the_end_of_the_next_life_beside_a_machine_that_stays_although_it_is_too_old() -> None:
    slots = [a_slot("linux-1", launched_at=-200, cordoned=True), a_slot("linux-2", launched_at=-60)]
    played = play_out(a_scenario(tick(0), pool=a_replacing_pool(max_age=100), slots=slots, wakes=True, until=60))
    assert played.ticks_at == {40: ["drain linux-2 aged", "terminate linux-2 drained"]}


def test_max_age_is_shortened_by_a_jitter_that_depends_on_slot_and_epoch_alone() -> None:
    rules = ReplacementRules(max_age=1000, max_age_jitter=0.5)
    ends = {find_end_of_life(a_row(f"linux-{number}", epoch=1, launched_at=0.0), rules) for number in range(100)}
    assert len(ends) == 100
    assert 500 < min(ends) < 550
    assert 900 < max(ends) <= 1000
    first = find_end_of_life(a_row("linux-1", epoch=1, launched_at=0.0), rules)
    assert first == 1000 - 500 * crc32(b"linux-1/1") / 2**32
    assert first != find_end_of_life(a_row("linux-1", epoch=2, launched_at=0.0), rules)


def test_the_age_of_a_machine_without_a_time_of_launch_counts_from_its_state() -> None:
    rules = ReplacementRules(max_age=100, max_age_jitter=0)
    assert find_end_of_life(a_row(since=7.0, launched_at=None), rules) == 107


ORDER: dict[str, tuple[list[Document], list[str]]] = {
    "idle before leased, whatever the age": (
        [a_slot("linux-1", "ready", "r1", launched_at=-900), a_slot("linux-2", launched_at=-200)],
        ["drain linux-2 aged"],
    ),
    "the oldest of idle ones": (
        [a_slot("linux-1", launched_at=-200), a_slot("linux-2", launched_at=-201)],
        ["drain linux-2 aged"],
    ),
    "slot order where ages are equal": (
        [a_slot("linux-1", launched_at=-200), a_slot("linux-2", launched_at=-200)],
        ["drain linux-1 aged"],
    ),
    "a leased one if none is idle": ([a_slot("linux-1", "ready", "r1", launched_at=-200)], ["drain linux-1 aged"]),
    "drifted and aged ones alike": (
        [a_slot("linux-1", launched_at=-200), a_slot("linux-2", launched_at=-150, drifted=True)],
        ["drain linux-1 aged"],
    ),
    "drift is the reason where both apply": (
        [a_slot("linux-1", launched_at=-200, drifted=True)],
        ["drain linux-1 drifted"],
    ),
    "not a cordoned one": ([a_slot("linux-1", launched_at=-200, cordoned=True)], []),
    "not one with an unknown occupant": ([a_slot("linux-1", launched_at=-200, stranger="x", noted_at=0)], []),
    "not one in flight": ([a_slot("linux-1", "booting", launched_at=-200, since=0)], []),
}


@pytest.mark.parametrize("name", ORDER)
def test_which_slot_is_replaced_first(name: str) -> None:
    slots, expected = ORDER[name]
    pool = a_replacing_pool(max_age=100, drift="replace")
    holders = [a_holder("r1")] if "r1" in json.dumps(slots) else []
    assert reported(tick(0), pool=pool, slots=slots, reservations=holders, cloud=SLOW) == [expected]


BUDGETS: dict[str, tuple[Any, int, int]] = {
    # the budget, drained of four slots, drained of three slots
    "none": (0, 0, 0),
    "a number": (2, 2, 2),
    "more than there are": (9, 4, 3),
    "a share": ("50%", 2, 2),
    "a share is rounded up": ("1%", 1, 1),
    "no share": ("0%", 0, 0),
    "all": ("100%", 4, 3),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_the_disruption_budget_limits_the_slots_that_are_replaced_at_a_time(name: str) -> None:
    budget, *expected = BUDGETS[name]
    for count, most in zip((4, 3), expected, strict=True):
        slots = [a_slot(f"linux-{number + 1}", launched_at=-200) for number in range(count)]
        [found] = reported(tick(0), pool=a_replacing_pool(budget, max_age=100), slots=slots)
        assert len(found) == most


UNDER_WAY: dict[str, tuple[Document, list[Document], int]] = {
    "slots that drain or terminate, for any reason": (
        {},
        [a_slot("linux-3", "draining", "r1"), a_slot("linux-4", "terminating", since=0)],
        0,
    ),
    "slots in flight that no reservation waits for": ({}, [a_slot("linux-3", "booting", since=0)], 1),
    "ready slots that the minimum lacks": ({"min_slots": 4}, [a_slot("linux-3", "error", since=0)], 0),
    "a slot that leaves and the one that replaces it count once": (
        {"min_slots": 3},
        [a_slot("linux-3", "draining", "r1"), a_slot("linux-4", "booting", since=0)],
        1,
    ),
}


@pytest.mark.parametrize("name", UNDER_WAY)
def test_what_counts_towards_the_budget(name: str) -> None:
    pool, others, expected = UNDER_WAY[name]
    slots = [a_slot(f"linux-{number}", launched_at=-200) for number in (1, 2)]
    found = reported(
        tick(0),
        pool=a_replacing_pool(2, pool=pool, max_age=100),
        slots=[*slots, *others],
        reservations=[a_holder("r1")],
        cloud=SLOW,
    )
    assert sum("aged" in each for each in found[0]) == expected


def test_a_rollout_replaces_the_minimum_one_by_one_and_never_serves_with_fewer() -> None:
    """Two machines of an old image: the second leaves when the first was replaced and its replacement is ready."""
    played = play_out(
        a_scenario(
            tick(0),
            act(1, "rules", {"pools": {"linux": {"ec2": {"image": "ami-2"}}}}),
            pool=a_replacing_pool(1, pool={"min_slots": 2, "max_slots": 3}, drift="replace"),
            slots=[a_slot("linux-1"), a_slot("linux-2")],
            cloud=SLOW,
            kicks=True,
            wakes=True,
            until=60,
        )
    )
    assert played.decisions == [
        "1 drain linux-1 drifted",
        "1 terminate linux-1 drained",
        "1 launch linux-3 minimum",
        "10 drain linux-2 drifted",
        "10 terminate linux-2 drained",
        "10 launch linux-1 minimum",
    ]
    assert played.slots == {"linux-1": "ready", "linux-3": "ready"}


def test_a_leased_slot_drains_and_its_lease_runs_on() -> None:
    assert reported(
        tick(0),
        submit(1, "r2"),
        tick(1),
        act(5, "release", "r1"),
        tick(5),
        pool=a_replacing_pool(1, pool={"max_slots": 2}, max_age=100),
        slots=[a_slot("linux-1", "ready", "r1", launched_at=-200)],
        reservations=[a_holder("r1")],
        cloud=SLOW,
    ) == [
        ["drain linux-1 aged"],
        ["launch linux-2 demand", "r2 waits booting"],
        ["terminate linux-1 drained", "r2 waits booting"],
    ]


def test_a_slot_that_gets_a_lease_in_this_tick_is_not_drained_in_it() -> None:
    found = reported(
        submit(0, "r1"), *ticks(0, 1), pool=a_replacing_pool(max_age=100), slots=[a_slot("linux-1", launched_at=-200)]
    )
    assert found == [["assign r1 linux-1"], ["drain linux-1 aged"]]


BETWEEN: dict[str, tuple[str, Any, str]] = {
    "cordoned": ("cordon", "linux-1", "linux-1 is cordoned"),
    "another machine": ("slot", a_slot("linux-1", launched_at=-99), "linux-1 is not too old"),
    "it drains": ("drain", "linux-1", "linux-1 is draining"),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_a_slot_that_is_not_to_be_replaced_any_more_stays(name: str) -> None:
    action, value, reason = BETWEEN[name]
    played = play_out(
        a_scenario(
            {"at": 0, "tick": {"between": [{action: value}]}},
            pool=a_replacing_pool(max_age=100),
            slots=[a_slot("linux-1", launched_at=-200)],
        )
    )
    assert played.ticks == [[f"drain linux-1 aged (skipped: {reason})"]]


def test_drift_is_ignored_unless_the_pool_replaces_drifted_machines() -> None:
    slots = [a_slot("linux-1", drifted=True)]
    assert reported(tick(0), pool=KEPT, slots=slots) == [[]]
    assert reported(tick(0), pool=a_replacing_pool(drift="replace"), slots=slots) == [["drain linux-1 drifted"]]


DRIFTS: dict[str, tuple[Document, tuple[str, ...]]] = {
    "another image": ({"image": "ami-2"}, ("image",)),
    "another version of the template": ({"launch_template_version": 3}, ("template",)),
    "other user data and tags": ({"user_data": "b", "tags": {"team": "b"}}, ("user_data", "tags")),
    "another subnet": ({"subnets": ["s-1", "s-3"]}, ("network",)),
    "another group": ({"security_groups": ["g-2"]}, ("network",)),
    "a larger volume": ({"volume_gib": 9}, ("machine",)),
    "the same subnets in another order": ({"subnets": ["s-2", "s-1"]}, ()),
    "another name of the file with the user data": ({"user_data_file": "x.sh"}, ()),
    "another way to choose a subnet": ({"spot_allocation": "lowest-price"}, ()),
}
EC2: Document = {
    "image": "ami-1",
    "launch_template": "lt-1",
    "launch_template_version": 2,
    "user_data": "a",
    "tags": {"team": "a"},
    "subnets": ["s-1", "s-2"],
    "security_groups": ["g-1"],
}


@pytest.mark.parametrize("name", DRIFTS)
def test_in_which_parts_a_machine_has_drifted(name: str) -> None:
    changes, expected = DRIFTS[name]
    slot = a_row(launch_digest=digest_launch(Ec2Rules(**EC2)))
    assert find_drift(slot, digest_launch(Ec2Rules(**{**EC2, **changes}))) == expected


def test_a_machine_without_a_digest_or_with_other_parts_has_not_drifted() -> None:
    assert find_drift(a_row(launch_digest=None), "image:1") == ()
    assert find_drift(a_row(launch_digest="image:1 kernel:2"), "image:1 tags:3") == ()


def test_a_launched_machine_has_the_digest_of_the_rules_and_the_time_of_its_launch() -> None:
    """The machine is launched from the second image and has drifted once the first one is back."""
    image = {"pools": {"linux": {"ec2": {"image": "ami-2"}}}}
    played = play_out(
        a_scenario(
            act(0, "rules", image),
            submit(0, "r1"),
            *ticks(0, 20),
            act(21, "rules", {"pools": {"linux": {"ec2": {"image": "ami-1"}}}}),
            *ticks(21, 99, 100),
            pool=a_replacing_pool(drift="replace", max_age=100),
            cloud=SLOW,
        )
    )
    assert [each for each in played.decisions if "drain" in each] == ["21 drain linux-1 drifted"]


CHEAPER: dict[str, tuple[Document, list[str]]] = {
    "half the price": ({}, ["drain linux-1 consolidated"]),
    "saves less than the threshold": ({"min_saving": 0.6}, []),
    "saves exactly the threshold": ({"min_saving": 0.5}, ["drain linux-1 consolidated"]),
    "off": ({"min_saving": 0}, []),
    "the slot has more resources": ({"resources": {"cpus": 8}}, []),
    "the slot has another label": ({"labels": {"disk": "ssd"}}, []),
    "the slot has no price": ({"price": 0}, []),
    "a lease is on it": ({"leases": [{"reservation": "r1"}]}, []),
    "it is cordoned": ({"cordoned": True}, []),
    "EC2 has no capacity for it": ({"held": "capacity"}, []),
}


@pytest.mark.parametrize("name", CHEAPER)
def test_an_idle_slot_is_replaced_by_a_cheaper_offering(name: str) -> None:
    changes, expected = CHEAPER[name]
    rules = {"min_saving": changes.pop("min_saving", 0.3)} if "min_saving" in changes else {"min_saving": 0.3}
    held = changes.get("held")
    record = a_slot("linux-1", offering="large", price=4, resources={"cpus": 4}) | {
        key: value for key, value in changes.items() if key != "held"
    }
    offerings = [
        {"name": "small", "price": 2, "resources": {"cpus": 4}},
        {"name": "large", "price": 4, "resources": {"cpus": 4}},
    ]
    hold = {"pool": "linux", "kind": "capacity", "subject": "small", "until": 60}
    found = reported(
        tick(0),
        pool=a_replacing_pool(pool={"offerings": offerings}, **rules),
        slots=[record],
        reservations=[a_holder("r1")] if "leases" in changes else [],
        holds=[hold] if held else [],
    )
    assert found == [expected]


def test_the_market_of_a_cheaper_offering_counts_the_slots_that_stay() -> None:
    """No offering is cheaper than `linux-1`, so the on-demand slot that the pool must have stays: a spot offering may
    take the place of `linux-2`.
    """
    offerings = [
        {"name": "small", "market": "on-demand", "price": 4, "resources": {"cpus": 4}},
        {"name": "small", "market": "spot", "price": 1, "resources": {"cpus": 4}},
    ]
    market = {"on_demand_base": 1}
    slots = [
        a_slot("linux-1", offering="small/on-demand", market="on-demand", price=4, resources={"cpus": 4}),
        a_slot("linux-2", offering="small/spot", market="spot", price=3, resources={"cpus": 4}),
    ]
    pool = a_replacing_pool(pool={"offerings": offerings, "market": market}, min_saving=0.3)
    assert reported(tick(0), pool=pool, slots=slots) == [["drain linux-2 consolidated"]]


REFUSED: dict[str, tuple[Document, str]] = {
    "a share above all": ({"disruption_budget": "101%"}, "disruption_budget"),
    "a share without a number": ({"disruption_budget": "%"}, "disruption_budget"),
    "a part of a slot": ({"disruption_budget": 1.5}, "disruption_budget"),
    "less than none": ({"disruption_budget": -1}, "disruption_budget"),
    "jitter of the whole life": ({"max_age_jitter": 1}, "max_age_jitter"),
    "more than the whole price": ({"min_saving": 1.1}, "min_saving"),
    "another word": ({"drift": "drop"}, "drift"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_rules_are_refused_with_their_path(name: str) -> None:
    rules, key = REFUSED[name]
    with pytest.raises(InvalidInputError) as raised:
        some_rules({"pools": {"linux": {"max_slots": 1, "replacement": rules}}})
    assert [each.path for each in raised.value.faults] == [f"config.pools.linux.replacement.{key}"]


def test_a_pool_of_static_hosts_replaces_no_machines() -> None:
    with pytest.raises(InvalidInputError, match="nothing in a static pool"):
        some_rules({"pools": {"hosts": {"system": "x", "provider": "static", "replacement": {"max_age": "1d"}}}})
