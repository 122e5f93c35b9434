"""The cached facts of a slot: its leases, and whether all leases that name it belong to its present machine."""

from typing import Any

import pytest
from msgspec.structs import replace

from scheduler.model.decisions import Assign, Expire
from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.model.transitions import SlotState
from scheduler.model.view import Row, View
from scheduler.policy.capacity.slot_info import CachedSlot, SlotInfo, make_cached_slot, renew_slot
from scheduler.policy.cycle.state import OpenedSlots
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from tests.builders import NOW, a_lease, a_reservation, a_slot, some_rules


@pytest.mark.parametrize(
    ("state", "epochs", "found", "is_sound"),
    [
        ("ready", [], [], True),
        ("ready", [2, 2], ["r0", "r1"], True),
        ("ready", [1, 2], ["r1"], False),
        ("ready", [1, 1], [], False),
        ("draining", [2], ["r0"], True),
        # A slot in these states holds no lease, although a reservation that lost it still names it.
        ("terminating", [2], [], False),
        ("empty", [2], [], False),
    ],
)
def test_a_slot_has_the_leases_of_its_present_machine(
    state: SlotState, epochs: list[int], found: list[str], is_sound: bool
) -> None:
    holders = [
        a_reservation(f"r{number}", phase="leased", leases=(a_lease(epoch=epoch),))
        for number, epoch in enumerate(epochs)
    ]
    view = View([a_slot(state=state, epoch=2), *holders])
    [slot] = view.slots.values()
    opened = make_cached_slot(view, slot, some_rules().pools["linux"])
    assert [owner for owner, _ in opened.slot_info.leases] == found
    assert opened.is_sound is is_sound


def test_a_lease_that_ends_with_time_frees_its_place_on_a_slot_whose_row_is_as_in_the_last_tick() -> None:
    """The slot counts leases only, so that its free amounts do not change."""
    lease = a_lease(confirmed_at=NOW)
    rows: list[Row] = [
        a_slot(),
        a_reservation("r1", phase="leased", leased_at=NOW, leases=(lease,), expires_at=NOW + 10),
        a_reservation("r2"),
    ]
    view, rules, cache = View(rows), some_rules({"pools": {"linux": {"max_slots": 1}}}), PlanCache()
    assert plan(view, rules, NOW, cache).decisions == ()
    found = plan(view, rules, NOW + 10, cache).decisions
    assert [type(each) for each in found] == [Expire, Assign]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"version": 2, "uses": 3, "idle_since": NOW - 5, "unconfirmed": 1},
        {"version": 2, "epoch": 3},
        {"version": 2, "cordoned": True},
        {"version": 2, "drain_reason": "operator"},
    ],
)
def test_a_renewed_slot_has_the_fields_of_a_new_copy(changes: dict[str, Any]) -> None:
    resources = {"cpus": 4.0}
    view = View([a_slot(resources=resources, epoch=2), _hold("r1", epoch=2), _hold("r2", epoch=2, cores=2.0)])
    rules = some_rules({"pools": {"linux": {"resources": resources, "max_uses": 9}}})
    slot_info, opened = open_only_slot(view, rules)
    slot_info.order = opened.slot_info.order = 7
    slot_info.given, slot_info.redeemed, slot_info.lifted, slot_info.overlap = 1, 1, 1, 1
    slot_info.unclean = slot_info.wanted = slot_info.stuck = True
    view.apply(a_slot(resources=resources, **{"epoch": 2} | changes))
    view.apply(replace(_hold("r2", epoch=2), version=2, phase="released", leases=()))
    assert renew_slot(slot_info, view, view.slots["linux-1"]) is opened
    copy, fresh = open_only_slot(view, rules)
    assert slot_info.order == opened.slot_info.order == 7
    for name in SlotInfo.__struct_fields__:
        if name not in {"opened", "order"}:
            assert getattr(slot_info, name) == getattr(copy, name), name
            assert getattr(opened.slot_info, name) == getattr(fresh.slot_info, name), name
    assert (opened.is_at_rest, opened.is_sound, opened.marks) == (fresh.is_at_rest, fresh.is_sound, fresh.marks)


def test_a_slot_with_other_resources_is_not_renewed() -> None:
    view = View([a_slot(resources={"cpus": 4.0})])
    slot_info, _ = open_only_slot(view, some_rules({"pools": {"linux": {"resources": {"cpus": 4.0}}}}))
    assert renew_slot(slot_info, view, a_slot(resources={"cpus": 8.0}, version=2)) is None
    assert slot_info.slot is view.slots["linux-1"]


def open_only_slot(view: View, rules: Rules) -> tuple[SlotInfo, CachedSlot]:
    """Return the scratch copy of the only slot, and the facts of which it is a copy."""
    opened_slots = OpenedSlots()
    opened_slots.follow(view, rules, {})
    (slot_info,) = opened_slots.copy()[1].values()
    assert slot_info.opened is not None
    return slot_info, slot_info.opened


def _hold(name: str, **lease: Any) -> Reservation:
    return a_reservation(name, phase="leased", leases=(a_lease(resources={"cpus": 1.0}, **lease),))
