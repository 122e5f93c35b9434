"""What a cycle that goes on in a later tick must see: each case is a change after which it plans as a new cycle."""

import gc
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from scheduler.model.accounts import Account
from scheduler.model.decisions import Assign, Decision, Drain, Expire, Plan, Start, Terminate
from scheduler.model.reservations import Reservation
from scheduler.model.transitions import SlotState
from scheduler.model.view import ROW_TYPES, Gone, Row, View
from scheduler.operations.paused_gc import PausedGC
from scheduler.policy.capacity.slot_index import SlotClass, SlotIndex
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from scheduler.policy.replan.kept_cycle import KeptCycle
from tests.builders import NOW, a_lease, a_reservation, a_slot, some_rules


class Ticks:
    """A view, and plans on it with a kept cycle. The first plan is that of a full cycle, which is kept."""

    def __init__(self, *rows: Row, **document: Any) -> None:
        self.rules = some_rules(document)
        self.view, self.cache, self.now = View(rows), PlanCache(least_kept=0), NOW
        self.has_gone_on = False
        self.first = self.tick()
        assert not self.has_gone_on

    def tick(self, *changes: Row | Gone) -> Plan:
        for change in changes:
            self.view.apply(change)
        rows = [row for kind in ROW_TYPES for row in self.view.rows(kind).values()]
        go_on, outcomes = KeptCycle.go_on, list[Plan | None]()

        def note(cycle: KeptCycle, now: float) -> Plan | None:
            outcomes.append(go_on(cycle, now))
            return outcomes[-1]

        with patch.object(KeptCycle, "go_on", note):
            found = plan(self.view, self.rules, self.now, self.cache)
        self.has_gone_on = any(outcome is not None for outcome in outcomes)
        fresh = plan(View(rows), self.rules, self.now)
        assert found.decisions == fresh.decisions
        assert list(found.waiting) == list(fresh.waiting)
        assert found.wake_at == fresh.wake_at
        self.cache.prepare()
        return found


def _hold(name: str, slot: str = "linux-1", **changes: Any) -> Reservation:
    resources = changes.get("resources", {})
    return a_reservation(
        name, phase="leased", leased_at=NOW, confirmed_at=NOW, leases=(a_lease(slot, resources=resources),), **changes
    )


def _wait(number: int, **changes: Any) -> Reservation:
    return a_reservation(f"r{number}", **{"sequence": number, "created_at": NOW - 100 + number, **changes})


def _assign(name: str, slot: str = "linux-1") -> list[tuple[str, str]]:
    return [(name, slot)]


def _list_assigned(decisions: tuple[Decision, ...]) -> list[tuple[str, str]]:
    return [(each.reservation, each.leases[0].slot) for each in decisions if isinstance(each, Assign)]


def test_a_lease_that_the_commit_did_not_write_is_given_again() -> None:
    ticks = Ticks(a_slot(), _wait(1), _wait(2))
    assert _list_assigned(ticks.first.decisions) == _assign("r1")
    assert _list_assigned(ticks.tick(_wait(3)).decisions) == _assign("r1")
    assert ticks.has_gone_on


def test_a_slot_that_was_cordoned_as_its_lease_ended_takes_no_lease() -> None:
    slot = a_slot()
    ticks = Ticks(slot, a_slot("linux-2"), _hold("a"), _hold("b", "linux-2"), _wait(1))
    found = ticks.tick(Gone("reservations", "a", 1), replace(slot, version=1, cordoned=True))
    assert found.decisions == ()
    assert ticks.tick(_wait(2)).decisions == ()


def test_a_reservation_that_no_slot_could_hold_waits_for_capacity_once_a_slot_has_its_labels() -> None:
    slot = a_slot(labels={"zone": "a"})
    pools = {"linux": {"provider": "static", "offline_timeout": 1e9}}
    ticks = Ticks(slot, _hold("a"), _wait(1, labels={"zone": "b"}), _wait(2), pools=pools)
    assert [each.code for each in ticks.first.waiting] == ["never_fits", "no_capacity"]
    found = ticks.tick(replace(slot, version=1, labels={"zone": "b"}))
    assert [each.code for each in found.waiting] == ["no_capacity", "no_capacity"]


@pytest.mark.parametrize(
    ("changes", "goes_on"),
    [
        ({"last_seen": NOW + 1}, True),
        ({"resources": {"cpus": 3}}, False),
        ({"labels": {"zone": "b"}}, False),
        ({"market": "on_demand"}, False),
    ],
    ids=["heartbeat", "amounts", "labels", "market"],
)
def test_a_cycle_goes_on_beside_a_changed_slot_if_its_amounts_labels_and_market_are_the_same(
    changes: dict[str, Any], goes_on: bool
) -> None:
    cpus = {"cpus": 2}
    slot, rows = a_slot(resources=cpus), [_hold("a", resources=cpus), _wait(1, resources=cpus)]
    ticks = Ticks(slot, *rows, pools={"linux": {"max_slots": 1}})
    ticks.tick(replace(slot, version=1, **changes))
    assert ticks.has_gone_on == goes_on


@pytest.mark.parametrize("most_changes", [1000, -1000], ids=["the same index", "an index that was made again"])
def test_a_request_of_a_new_kind_is_searched_on_slots_that_did_not_change(most_changes: int) -> None:
    pools = {"linux": {"max_slots": 1, "resources": {"memory_mib": 4}}}
    rows: list[Row] = [a_slot(), _hold("a", resources={"memory_mib": 2}), _wait(1, resources={"memory_mib": 3})]
    with patch("scheduler.policy.replan.kept_cycle.MOST_CHANGES", most_changes):
        ticks = Ticks(*rows, pools=pools)
        assert ticks.first.decisions == ticks.tick().decisions == ()
        found = ticks.tick(_wait(2, resources={"memory_mib": 1}))
    assert ticks.has_gone_on
    assert _list_assigned(found.decisions) == _assign("r2")


def test_a_cycle_whose_index_was_made_again_plans_as_before_and_frees_the_former_index() -> None:
    held = [_hold(f"h{number}", f"linux-{number}") for number in (1, 2)]
    rows: list[Row] = [a_slot("linux-1"), a_slot("linux-2"), *held, _wait(1), _wait(2)]
    with patch("scheduler.policy.replan.kept_cycle.MOST_CHANGES", -1000), PausedGC():
        before = _count(SlotIndex)
        ticks = Ticks(*rows, pools={"linux": {"max_slots": 2}})
        assert _count(SlotIndex) - before == 2, "ready and in flight"
        first = ticks.tick(replace(held[0], phase="released", leases=(), version=2))
        assert (ticks.has_gone_on, _list_assigned(first.decisions)) == (True, _assign("r1", "linux-1"))
        assert _count(SlotIndex) - before == 2
        second = ticks.tick(_hold("r1", version=2), replace(held[1], phase="released", leases=(), version=2))
        assert (ticks.has_gone_on, _list_assigned(second.decisions)) == (True, _assign("r2", "linux-2"))
        assert _count(SlotIndex) - before == 2


def test_a_plan_leaves_no_class_of_slots_to_the_garbage_collector() -> None:
    with PausedGC():
        before = _count(SlotClass)
        found = plan(View([a_slot(), _wait(1), _wait(2)]), some_rules(), NOW)
        assert _list_assigned(found.decisions) == _assign("r1")
        assert _count(SlotClass) == before


def _count(kind: type) -> int:
    """Return how many objects of this class are in memory."""
    return sum(type(each) is kind for each in gc.get_objects())


@pytest.mark.parametrize("state", ["terminating", "error"])
def test_a_cycle_goes_on_beside_a_slot_that_waits_for_its_timeout(state: SlotState) -> None:
    ticks = Ticks(a_slot(), a_slot("linux-2", state=state), _hold("a"), _wait(1), pools={"linux": {"max_slots": 2}})
    ticks.tick(_wait(2))
    assert ticks.has_gone_on


def test_an_idle_slot_that_the_minimum_keeps_causes_no_cycle() -> None:
    pools = {"linux": {"max_slots": 1, "min_slots": 1, "idle_scale_down": 60}}
    ticks = Ticks(a_slot(), _wait(1, labels={"gpu": "yes"}), pools=pools)
    assert ticks.tick(_wait(2, labels={"gpu": "yes"})).wake_at is None
    assert ticks.has_gone_on


def test_an_arrival_of_a_higher_priority_is_reported_and_placed_first() -> None:
    pools = {"linux": {"max_slots": 1}}
    ticks = Ticks(a_slot(), _hold("a"), _wait(1), _wait(2), scheduler={"queue": "priority"}, pools=pools)
    found = ticks.tick(_wait(3, priority=5))
    assert [each.reservation for each in found.waiting] == ["r3", "r1", "r2"]
    found = ticks.tick(Gone("reservations", "a", 1))
    assert ticks.has_gone_on
    assert _list_assigned(found.decisions) == _assign("r3")


def test_a_reservation_that_left_is_neither_reported_nor_placed() -> None:
    pools = {"linux": {"max_slots": 1}}
    ticks = Ticks(a_slot(), _hold("a"), _wait(1), _wait(2), pools=pools)
    found = ticks.tick(Gone("reservations", "r1", 1), Gone("reservations", "a", 1))
    assert ticks.has_gone_on
    assert _list_assigned(found.decisions) == _assign("r2")


def test_without_backfill_a_reservation_behind_one_that_waits_gets_no_slot() -> None:
    pools = {"linux": {"max_slots": 1, "resources": {"memory_mib": 4}}}
    rows: list[Row] = [a_slot(), _hold("a", resources={"memory_mib": 2}), _wait(1, resources={"memory_mib": 3})]
    ticks = Ticks(*rows, pools=pools, scheduler={"backfill": False})
    assert ticks.tick(_wait(2, resources={"memory_mib": 1})).decisions == ()


def test_a_slot_that_becomes_idle_makes_room_for_a_launch_that_max_slots_withholds() -> None:
    pools = {"linux": {"max_slots": 1, "resources": {"memory_mib": 8}}}
    slot = a_slot(resources={"memory_mib": 2})
    ticks = Ticks(slot, _hold("a", resources={"memory_mib": 1}), _wait(1, resources={"memory_mib": 4}), pools=pools)
    assert [each.code for each in ticks.first.waiting] == ["at_max_slots"]
    found = ticks.tick(Gone("reservations", "a", 1))
    assert found.decisions == (Drain(slot="linux-1", reason="at_quota"),)


def test_a_slot_that_was_idle_for_too_long_is_drained_as_soon_as_its_last_lease_is_gone() -> None:
    pools = {"linux": {"max_slots": 2, "idle_scale_down": 60}}
    slot = a_slot(idle_since=NOW - 100)
    ticks = Ticks(slot, a_slot("linux-2"), _hold("a"), _hold("b", "linux-2"), pools=pools)
    assert ticks.first.decisions == ()
    assert ticks.tick(Gone("reservations", "a", 1)).decisions == (Drain(slot="linux-1", reason="idle"),)


def test_the_next_cycle_is_due_when_the_slot_that_became_idle_is_to_be_drained() -> None:
    pools = {"linux": {"max_slots": 2, "idle_scale_down": 60}}
    ticks = Ticks(a_slot(), a_slot("linux-2"), _hold("a"), _hold("b", "linux-2"), pools=pools)
    found = ticks.tick(Gone("reservations", "a", 1))
    assert ticks.has_gone_on
    assert found.wake_at is not None
    assert found.wake_at > NOW + 60


def test_the_next_cycle_is_due_for_another_slot_once_the_longest_idle_one_has_a_lease() -> None:
    pools = {"linux": {"max_slots": 2, "idle_scale_down": 60}}
    idle = [a_slot(name, idle_since=since) for name, since in (("linux-1", NOW - 50), ("linux-2", NOW - 10))]
    ticks = Ticks(*idle, pools=pools)
    ticks.tick(a_reservation("r1", priority=0))
    found = ticks.tick(_hold("a"))
    assert ticks.has_gone_on
    assert found.wake_at is not None
    assert found.wake_at > NOW + 20


def test_a_reservation_that_arrives_after_its_expiry_ends_and_does_not_wait() -> None:
    ticks = Ticks(a_slot(), _hold("a"), _wait(1), pools={"linux": {"max_slots": 1}})
    found = ticks.tick(_wait(2, expires_at=NOW - 1))
    assert found.decisions == (Expire(reservation="r2"),)
    assert [each.reservation for each in found.waiting] == ["r1"]


def test_the_next_cycle_is_due_at_the_limit_of_a_lease_that_a_later_cycle_gave() -> None:
    account = Account(id="A", enforce_max_runtime=True)
    rows: list[Row] = [a_slot(), a_slot("linux-2"), _hold("a"), _wait(1), account]
    ticks = Ticks(*rows, pools={"linux": {"max_slots": 2, "lease_ttl": 0, "min_slots": 2}})
    ticks.tick(_hold("r1", "linux-2", version=1))
    found = ticks.tick(Gone("reservations", "a", 1), _wait(2, account="A", max_runtime=50.0))
    assert (ticks.has_gone_on, _list_assigned(found.decisions)) == (True, _assign("r2"))
    assert found.wake_at == NOW + 50


@pytest.mark.parametrize("is_enforced", [True, False])
def test_a_cycle_goes_on_beside_a_limit_unless_its_account_begins_to_enforce_it(is_enforced: bool) -> None:
    account, holder = Account(id="A"), _hold("a", account="A", max_runtime=5.0, sequence=9)
    ticks = Ticks(a_slot(), holder, _wait(1), account, pools={"linux": {"max_slots": 1}})
    ticks.now = NOW + 6
    found = ticks.tick(replace(account, version=1, enforce_max_runtime=is_enforced), _wait(2))
    expired = [each for each in found.decisions if isinstance(each, Expire)]
    assert expired == ([Expire(reservation="a", reason="limit", revoke_by=NOW + 36)] if is_enforced else [])
    assert ticks.has_gone_on != is_enforced


def test_under_quota_an_account_that_comes_to_another_level_changes_the_order() -> None:
    accounts = [
        Account(id=name, charge_rate=(0.0,) * 5, balance=balance, charged_at=NOW)
        for name, balance in (("A", (9.0, 0.0, 0.0, 0.0, 0.0)), ("B", (0.0, 9.0, 0.0, 0.0, 0.0)))
    ]
    settings = {"queue": "quota", "preemption": False}
    rows: list[Row] = [a_slot(), _hold("a"), _wait(1, account="B"), _wait(2, account="A"), *accounts]
    ticks = Ticks(*rows, scheduler=settings, pools={"linux": {"max_slots": 1}})
    assert [each.reservation for each in ticks.first.waiting] == ["r2", "r1"]
    found = ticks.tick(_wait(3, account="A"))
    assert ticks.has_gone_on
    assert [each.reservation for each in found.waiting] == ["r2", "r3", "r1"]
    found = ticks.tick(replace(accounts[0], version=1, balance=(0.0, 0.0, 9.0, 0.0, 0.0)))
    assert [each.reservation for each in found.waiting] == ["r1", "r2", "r3"]


@pytest.mark.parametrize(
    "limits",
    [
        {"per_label_task_limits": {"rack": 1}},
        {"disable_free_tasks": True, "max_fanout": 1},
        {"disable_free_tasks": True, "max_fanout": 1, "per_label_task_limits": {"rack": 1}},
    ],
)
def test_under_quota_a_reservation_whose_account_has_reached_a_limit_waits_for_it_from_its_first_tick_on(
    limits: dict[str, Any],
) -> None:
    balance = (9.0, 0.0, 0.0, 0.0, 0.0)
    account = Account(id="A", charge_rate=(0.0,) * 5, balance=balance, charged_at=NOW, **limits)
    slots = [a_slot(f"linux-{number}", labels={"rack": "a"}) for number in (1, 2)]
    paid = replace(_hold("a", account="A", sequence=9), leases=(a_lease(level=0, charged_at=NOW),))
    rows: list[Row] = [*slots, paid, _wait(1, labels={"rack": "b"}), account]
    pools = {"linux": {"provider": "static", "offline_timeout": 1e9}}
    ticks = Ticks(*rows, scheduler={"queue": "quota", "preemption": False}, pools=pools)
    found = ticks.tick(_wait(2, account="A"))
    assert [(each.reservation, each.code) for each in found.waiting] == [("r2", "account_limit"), ("r1", "never_fits")]


def _of_tier(name: str, state: SlotState = "ready", **changes: Any) -> Row:
    fields = {"market": "on-demand", "offering": "small", "resources": {"cpus": 2}, "instance_id": f"i-{name}"}
    return a_slot(name, state=state, **{**fields, **changes})


TIER: dict[str, Any] = {
    "pools": {
        "linux": {
            "stopped_slots": 1,
            "idle_scale_down": 60,
            "offerings": [{"name": "small", "market": "on-demand", "resources": {"cpus": 2}}],
        }
    }
}


def test_a_kept_cycle_goes_on_beside_a_full_stopped_tier() -> None:
    ticks = Ticks(_of_tier("linux-1"), _of_tier("linux-2", "stopped"), **TIER)
    found = ticks.tick(a_reservation("r1", resources={"cpus": 1}))
    assert [type(each) for each in found.decisions if isinstance(each, Assign)] == [Assign]
    assert ticks.has_gone_on


def test_a_kept_cycle_does_not_go_on_for_demand_that_a_stopped_slot_serves() -> None:
    ticks = Ticks(_of_tier("linux-1"), _of_tier("linux-2", "stopped"), **TIER)
    found = ticks.tick(a_reservation("r1", resources={"cpus": 2}), a_reservation("r2", resources={"cpus": 2}))
    assert any(isinstance(each, Start) for each in found.decisions)
    assert not ticks.has_gone_on


@pytest.mark.parametrize("kept", ["min_slots", "target_warm_slots"])
def test_a_kept_cycle_does_not_go_on_once_a_stopped_slot_is_started_for_the_reserve_at_max_slots(kept: str) -> None:
    pool = TIER["pools"]["linux"] | {"max_slots": 2, kept: 1}
    ticks = Ticks(_of_tier("linux-1"), _of_tier("linux-2", "stopped"), pools={"linux": pool})
    if kept == "min_slots":
        found = ticks.tick(replace(_of_tier("linux-1"), version=1, cordoned=True))
    else:
        found = ticks.tick(a_reservation("r1", resources={"cpus": 1}))
    assert any(isinstance(each, Start) for each in found.decisions)
    assert not ticks.has_gone_on


def test_a_stopped_slot_makes_room_for_a_launch_that_max_slots_withholds() -> None:
    large = {"name": "large", "market": "on-demand", "resources": {"cpus": 4}}
    pool = TIER["pools"]["linux"] | {"max_slots": 2, "offerings": [*TIER["pools"]["linux"]["offerings"], large]}
    held = _hold("a", resources={"cpus": 2})
    ticks = Ticks(_of_tier("linux-1"), _of_tier("linux-2", "stopped"), held, pools={"linux": pool})
    found = ticks.tick(a_reservation("r1", resources={"cpus": 4}))
    assert found.decisions == (Terminate(slot="linux-2", reason="at_quota"),)


@pytest.mark.parametrize("seconds", [0, 59, 60, 61, 3600])
def test_a_kept_cycle_does_not_go_on_while_the_stopped_tier_lacks_or_exceeds_its_number(seconds: float) -> None:
    """The comparison with a new cycle is in `Ticks.tick`."""
    ready = [_of_tier(f"linux-{number}") for number in (1, 2)]
    for others in ([], [_of_tier("linux-3", "stopped"), _of_tier("linux-4", "stopped")]):
        ticks = Ticks(*ready, *others, **TIER)
        ticks.now += seconds
        ticks.tick()
        assert not ticks.has_gone_on


def test_a_stop_that_is_not_confirmed_times_out_in_a_kept_cycle_too() -> None:
    ticks = Ticks(_of_tier("linux-1"), _of_tier("linux-2", "stopped", power="stop"), **TIER)
    for seconds in (10, 289):
        ticks.now += seconds
        ticks.tick()
    ticks.now += 1
    assert Terminate(slot="linux-2", reason="timeout") in ticks.tick().decisions
