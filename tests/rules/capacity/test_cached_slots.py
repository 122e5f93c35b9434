"""The cached facts of a slot: its leases, and whether all leases that name it belong to its present machine."""

import pytest

from scheduler.model.decisions import Assign, Expire
from scheduler.model.transitions import SlotState
from scheduler.model.view import Row, View
from scheduler.policy.capacity.slot_info import make_cached_slot
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
