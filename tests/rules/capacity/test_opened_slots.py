"""The slots as a cycle finds them are the same ones, whether they were kept from earlier cycles or read again."""

from unittest.mock import patch

import pytest

from scheduler.model.rules import Rules
from scheduler.model.view import Change, Gone, Row, View
from scheduler.policy.cycle.state import CycleState, OpenedSlots
from scheduler.policy.plan_cache import PlanCache
from tests.builders import NOW, a_lease, a_reservation, a_slot, some_rules

RULES = some_rules()
ROWS: list[Row] = [
    a_slot("linux-1"),
    a_slot("linux-2", state="booting", epoch=1),
    a_slot("linux-10"),
    a_slot("linux-11", epoch=2),
    a_slot("gone-1", pool="gone"),
    a_reservation("r0", phase="leased", leases=(a_lease(slot="linux-11"),)),
    a_reservation("r1", phase="leased", leases=(a_lease(slot="linux-1"),)),
]
CHANGES: dict[str, Change] = {
    "a slot gets a lease": a_reservation("r2", phase="leased", leases=(a_lease(slot="linux-10"),)),
    "a slot loses its lease": a_reservation("r1", version=9),
    "a lease belongs to an earlier machine": a_slot("linux-1", epoch=7, version=9),
    "the lease of an earlier machine ends": a_reservation("r0", version=9),
    "a slot boots no more": a_slot("linux-2", epoch=1, version=9),
    "a slot drains": a_slot("linux-10", state="draining", version=9),
    "a slot comes": a_slot("linux-3"),
    "a slot leaves": Gone("slots", "linux-10", 9),
    "a slot moves to another pool": a_slot("linux-10", pool="gone", version=9),
    "a machine of a vanished pool ends": a_slot("gone-1", pool="gone", state="empty", version=9),
    "a lease names a slot that does not exist": a_reservation("r3", phase="leased", leases=(a_lease(slot="linux-4"),)),
}


def _show(view: View, rules: Rules, cache: PlanCache) -> tuple[object, ...]:
    cycle = CycleState(view, rules, NOW, cache)
    slots = [(each.slot, each.order, dict(each.leases), each.free) for each in cycle.slot_infos.values()]
    pools = {name: [each.slot.id for each in slot_infos] for name, slot_infos in cycle.pools.items()}
    return slots, pools, [each.slot.id for each in cycle.list_restless()], cycle.unsound, cycle.vanished


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_kept_slots_are_as_if_read_again_after_each_change(change: Change) -> None:
    view, cache = View(ROWS), PlanCache()
    cache.follow(view)
    before = _show(view, RULES, cache)
    view.apply(change)
    cache.follow(view)
    after = _show(view, RULES, cache)
    assert after == _show(view, RULES, PlanCache())
    assert after != before


def test_slots_are_read_again_under_other_pools() -> None:
    view, cache = View(ROWS), PlanCache()
    cache.follow(view)
    _show(view, RULES, cache)
    others = some_rules({"pools": {"gone": {"system": "linux", "max_slots": 9, "offerings": [{"name": "small"}]}}})
    assert _show(view, others, cache) == _show(view, others, PlanCache())


def test_only_slots_that_changed_are_read_again() -> None:
    view, cached = View(ROWS), PlanCache().slots
    opened = OpenedSlots()
    opened.follow(view, RULES, cached)
    first = dict(cached)
    view.apply(a_slot("linux-10", version=9))
    del cached["linux-10"]  # `PlanCache.follow` does it
    with patch.object(OpenedSlots, "_read_all", side_effect=AssertionError("only one slot changed")):
        opened.follow(view, RULES, cached)
    assert [name for name in cached if cached[name] is not first.get(name)] == ["linux-10"]


def test_a_cycle_in_which_no_step_examines_a_slot_copies_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: OpenedSlots) -> None:
        raise AssertionError("no slot is to be copied")

    monkeypatch.setattr(OpenedSlots, "copy", refuse)
    view = View([a_slot("linux-1"), a_slot("linux-2")])
    cycle = CycleState(view, RULES, NOW)
    assert cycle.list_restless() == []


def test_a_later_cycle_does_not_see_what_an_earlier_one_decided() -> None:
    view, cache = View(ROWS), PlanCache()
    cache.follow(view)
    CycleState(view, RULES, NOW, cache).slot_infos["linux-1"].given = 3
    assert CycleState(view, RULES, NOW, cache).slot_infos["linux-1"].given == 0
