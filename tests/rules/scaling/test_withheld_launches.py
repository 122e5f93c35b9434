"""Slots that go because a launch is withheld, and the order in which offerings are launched."""

from typing import Any

import pytest

from scheduler.model.decisions import Drain, Launch
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.transitions import SlotState
from scheduler.model.view import Row, View
from scheduler.model.waiting_codes import ENTRIES, WaitingCode
from scheduler.policy.plan import plan
from scheduler.policy.scaling.offerings import list_choices
from tests.builders import NOW, a_component, a_lease, a_reservation, a_slot, some_rules

GPU = {"gpu": "yes"}
SIZE = {"cpus": 2}


@pytest.mark.parametrize(
    ("instances", "drained"),
    [
        ([1], ["linux-1"]),
        ([4], ["linux-1", "linux-2"]),
        # Five instances need three slots, of which two could go: the gang makes none go.
        ([5], []),
        # It does not fit beside the launch for the single instance either: what fails once is not tried again.
        ([5, 1, 5], ["linux-1"]),
    ],
)
def test_an_idle_slot_goes_for_each_launch_of_a_reservation_that_all_launches_together_would_serve(
    instances: list[int], drained: list[str]
) -> None:
    """No slot is left within `max_slots`, and the idle slots have not the label that the reservations require."""
    offerings = [
        {"name": "plain", "price": 1, "resources": SIZE},
        {"name": "gpu", "price": 1, "resources": SIZE, "labels": GPU},
    ]
    pool = {"max_slots": 2, "offerings": offerings}
    slots = [a_slot(f"linux-{number}", offering="plain") for number in (1, 2)]
    waiting = [
        a_reservation(
            f"r{number}", sequence=number, components=(a_component(count=count, resources={"cpus": 1}, labels=GPU),)
        )
        for number, count in enumerate(instances)
    ]
    found = plan(View([*slots, *waiting]), some_rules({"pools": {"linux": pool}}), NOW)
    assert [each.slot for each in found.decisions if isinstance(each, Drain)] == drained


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ([{"memory_mib": 1}, {"memory_mib": 2}], ["b", "a"]),
        ([{"cpus": 1, "memory_mib": 1}, {"cpus": 2, "memory_mib": 1}], ["b", "a"]),
        ([{"cpus": 1}, {"cpus": 1}], ["a", "b"]),
        # An offering without cpus has less than any other one.
        ([{"disk": 1}, {"cpus": 0.5}], ["b", "a"]),
        ([{"disk": 1}, {"memory_mib": 0.5}], ["b", "a"]),
    ],
)
def test_offerings_of_one_price_are_ordered_by_memory_then_cpus_then_name(
    sizes: list[dict[str, Any]], names: list[str]
) -> None:
    offerings = [{"name": name, "price": 1, "resources": size} for name, size in zip("ab", sizes, strict=True)]
    pool = some_rules({"pools": {"linux": {"offerings": offerings}}}).pools["linux"]
    assert [choice.key for choice in list_choices(pool)] == names


@pytest.mark.parametrize(("most", "code"), [(2, "misconfigured"), (1, "at_max_slots")])
def test_failed_boots_are_the_sentence_of_a_wait_only_if_they_prevent_the_launch(most: int, code: WaitingCode) -> None:
    hold = Hold(
        id=hold_id("linux", "unhealthy"),
        pool="linux",
        kind="unhealthy",
        subject="linux-9 timed out",
        refused_at=NOW,
        until=NOW + 60,
        streak=3,
    )
    rules = some_rules({"pools": {"linux": {"max_slots": most, "unhealthy_after": 3}}})
    holder = a_reservation("r9", phase="leased", leases=(a_lease(),))
    rows: list[Row] = [a_slot(), a_slot("linux-2", state="empty"), hold, holder, a_reservation()]
    boots = "3 boots in a row failed (the last one: linux-9 timed out); launches of linux rest, then one is tried alone"
    [waits] = plan(View(rows), rules, NOW).waiting
    assert (waits.code, waits.detail) == (code, boots if code == "misconfigured" else ENTRIES[code].sentence)


@pytest.mark.parametrize(
    ("state", "drain_reason", "code"),
    [
        ("booting", None, "misconfigured"),
        ("binding", None, "misconfigured"),
        # Such a machine was to drain anyway.
        ("booting", "requested", "booting"),
        # It did not start to boot, or it ends.
        ("launching", None, "booting"),
        ("terminating", None, "booting"),
    ],
)
def test_only_a_machine_that_boots_in_vain_withholds_launches_and_its_own_tick_counts_it(
    state: SlotState, drain_reason: str | None, code: WaitingCode
) -> None:
    timeouts = {f"{name}_timeout": 60 for name in ("launch", "boot", "terminating")}
    rules = some_rules({"pools": {"linux": {"max_slots": 2, "unhealthy_after": 1, **timeouts}}})
    silent = a_slot(state=state, since=NOW - 9999, drain_reason=drain_reason)
    [waits] = plan(View([silent, a_slot("linux-2", state="empty"), a_reservation()]), rules, NOW).waiting
    assert waits.code == code
    if code == "misconfigured":
        boots = "1 boots in a row failed (the last one: linux-1 timed out)"
        assert waits.detail == f"{boots}; launches of linux rest, then one is tried alone"


def test_the_launch_that_is_the_trial_of_a_gang_is_no_warm_slot() -> None:
    """The idle slot is the warm reserve of the pool, and stays."""
    hold = Hold(id=hold_id("linux", "quota"), pool="linux", kind="quota", refused_at=NOW - 60, until=NOW - 1, active=1)
    offerings = [{"name": f"t{cpus}", "price": cpus, "resources": {"cpus": cpus}} for cpus in (2, 4)]
    keys = {"max_slots": 3, "max_leases_per_slot": 1, "idle_scale_down": 5, "target_warm_slots": 1}
    gang = a_reservation(components=(a_component(count=2, resources={"cpus": 4}),))
    idle = a_slot(offering="t2", idle_since=NOW - 100)
    empty = [a_slot(f"linux-{number}", state="empty") for number in (2, 3)]
    rules = some_rules({"pools": {"linux": {**keys, "offerings": offerings, "price_factor": 1}}})
    [launched] = plan(View([idle, *empty, gang, hold]), rules, NOW).decisions
    assert isinstance(launched, Launch)
    assert (launched.slot, launched.offering) == ("linux-2", "t4")


@pytest.mark.parametrize(
    ("machines", "ends_in", "code"),
    [(2, 60, "at_max_slots"), (3, 60, "at_max_slots"), (1, 60, "booting"), (2, -1, "booting")],
)
def test_machines_of_ours_that_no_slot_knows_count_towards_max_slots(
    machines: int, ends_in: float, code: WaitingCode
) -> None:
    times: dict[str, Any] = {"refused_at": NOW - 60, "until": NOW + ends_in}
    hold = Hold(id=hold_id("linux", "strangers"), pool="linux", kind="strangers", active=machines, **times)
    holder = a_reservation("r9", phase="leased", leases=(a_lease(),))
    empty = [a_slot(f"linux-{number}", state="empty") for number in (2, 3)]
    rules = some_rules({"pools": {"linux": {"max_slots": 3, "max_leases_per_slot": 1}}})
    [waits] = plan(View([a_slot(), *empty, hold, holder, a_reservation()]), rules, NOW).waiting
    unknown = f"{ENTRIES['at_max_slots'].sentence}; machines of ours that no slot knows: {machines}"
    assert (waits.code, waits.detail == unknown) == (code, code == "at_max_slots")


@pytest.mark.parametrize(("refused_with", "code"), [(1, "booting"), (2, "booting"), (0, "at_quota")])
def test_a_quota_is_no_longer_reached_when_fewer_machines_run_than_at_the_refusal(
    refused_with: int, code: WaitingCode
) -> None:
    """No machine runs now. A refusal without a machine lasts until the end of its back-off."""
    times: dict[str, Any] = {"refused_at": NOW - 1, "until": NOW + 59}
    hold = Hold(id=hold_id("linux", "quota"), pool="linux", kind="quota", active=refused_with, **times)
    empty = [a_slot(f"linux-{number}", state="empty") for number in (1, 2)]
    rules = some_rules({"pools": {"linux": {"max_slots": 2}}})
    [waits] = plan(View([*empty, hold, a_reservation()]), rules, NOW).waiting
    assert waits.code == code
