"""Slots that go because a launch is withheld, and the order in which offerings are launched."""

from typing import Any

import pytest

from scheduler.model.decisions import Drain
from scheduler.model.launch_backoff import Hold, hold_id
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


def test_the_first_failed_boot_is_counted_in_the_sentence_of_a_wait_in_its_own_tick() -> None:
    rules = some_rules({"pools": {"linux": {"max_slots": 2, "unhealthy_after": 1, "boot_timeout": 60}}})
    silent = a_slot(state="booting", since=NOW - 61)
    [waits] = plan(View([silent, a_slot("linux-2", state="empty"), a_reservation()]), rules, NOW).waiting
    boots = "1 boots in a row failed (the last one: linux-1 timed out); launches of linux rest, then one is tried alone"
    assert (waits.code, waits.detail) == ("misconfigured", boots)
