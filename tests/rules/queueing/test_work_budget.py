"""A tick bounds the counted work of one principal's gangs and elastic components; later ticks do the rest."""

from typing import Any

import msgspec
import pytest

from scheduler.model.decisions import Assign, Cores, Grant, Launch, Plan
from scheduler.model.reservations import Component, Request, Reservation
from scheduler.model.rules import Rules
from scheduler.model.view import Row, View
from scheduler.policy.cycle.work_budget import CORES_STEPS, LEASE_STEPS, PAUSE_SECONDS
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from scheduler.simulation.cloud_documents import CloudDocument
from scheduler.simulation.cluster import build_cluster
from tests.builders import NOW, SYSTEM, a_lease, a_reservation, a_slot, some_rules

SLOTS = 20


def rules_with(most: int, **scheduler: Any) -> Rules:
    pools = {"linux": {"max_slots": SLOTS, "resources": {"cpus": 10}}}
    return some_rules({"pools": pools, "scheduler": scheduler, "limits": {"work_per_tick": most}})


def a_gang(number: int, cpus: float, principal: str | None = "greedy", count: int = 10, **parts: Any) -> Reservation:
    components = (Component(name="rank", count=count, resources={"cpus": cpus}), *parts.get("more", ()))
    request = Request(system=SYSTEM, components=components)
    return Reservation(
        id=f"g{number}", sequence=number, request=request, created_at=NOW - 100 + number, principal=principal
    )


def a_fleet(*reservations: Reservation) -> View:
    slots = [a_slot(f"linux-{number}", resources={"cpus": 10}) for number in range(1, SLOTS + 1)]
    return View([*slots, *reservations])


def list_assigned(found: Plan) -> list[str]:
    return [each.reservation for each in found.decisions if isinstance(each, Assign)]


def list_tried(found: Plan) -> set[str]:
    """Return the reservations that wait for another reason than the work budget."""
    return {name for name, (code, _) in found.waiting.items() if code != "behind_queue"}


def large_gangs(count: int) -> list[Reservation]:
    """None of them fits on its own, and the failure of one implies nothing about the next one."""
    return [a_gang(number, 9.9 - number / 100, count=SLOTS + 1) for number in range(count)]


@pytest.mark.parametrize("most", [0, 1_000_000])
def test_work_within_the_bound_is_planned_as_without_a_bound(most: int) -> None:
    found = plan(a_fleet(*large_gangs(8), a_gang(8, 1)), rules_with(most), NOW)
    assert list_assigned(found) == ["g8"]
    assert list_tried(found) == {f"g{number}" for number in range(8)}
    assert found.wake_at is not None
    assert found.wake_at > NOW + PAUSE_SECONDS


def test_a_principal_that_has_spent_its_budget_does_not_delay_another_one() -> None:
    rows = [*large_gangs(8), a_gang(8, 1), a_gang(9, 1, "other"), a_gang(10, 1, None)]
    found = plan(a_fleet(*rows), rules_with(10), NOW)
    assert list_assigned(found) == ["g9", "g10"]
    code, detail = dict(found.waiting.items())["g8"]
    assert (code, "limits.work_per_tick" in detail) == ("behind_queue", True)
    assert found.wake_at == NOW


def test_every_gang_is_tried_in_time_and_the_first_one_in_every_tick() -> None:
    """The gang that fits is tried too, although seven that do not fit precede it."""
    view, rules = a_fleet(*large_gangs(7), a_gang(7, 1)), rules_with(10)
    cache, tried = PlanCache(), list[set[str]]()
    while not (found := plan(view, rules, NOW + len(tried), cache)).decisions:
        assert found.wake_at == NOW + len(tried) + PAUSE_SECONDS
        tried.append(list_tried(found))
        assert len(tried) < 10
    assert list_assigned(found) == ["g7"]
    assert all("g0" in each for each in tried)
    assert set().union(*tried) >= {f"g{number}" for number in range(6)}
    assert sum(len(each - {"g0"}) for each in tried) <= 7


def test_when_all_gangs_were_tried_they_are_tried_again() -> None:
    view, rules = a_fleet(*large_gangs(6)), rules_with(10)
    cache = PlanCache()
    turns = [list_tried(plan(view, rules, NOW + tick, cache)) - {"g0"} for tick in range(20)]
    assert all(sum(f"g{number}" in each for each in turns) >= 3 for number in range(1, 6))


def test_leases_that_are_given_are_charged_to_the_budget() -> None:
    """The first gang pays for its leases, too; later gangs follow as far as the bound allows, and the rest in the next
    tick. The ten leases of a gang count as 50 steps.
    """
    rows = [a_gang(number, 1) for number in range(5)]
    view = a_fleet(*rows)
    assert list_assigned(plan(view, rules_with(50), NOW)) == ["g0"]
    assert list_assigned(plan(view, rules_with(51), NOW)) == ["g0", "g1"]
    assert list_assigned(plan(view, rules_with(125), NOW)) == ["g0", "g1", "g2"]


def test_without_backfill_a_gang_that_is_tried_later_blocks_the_queue() -> None:
    rows = [a_gang(0, 1), a_gang(1, 1), a_gang(2, 1), a_gang(3, 1, "other", count=1)]
    found = plan(a_fleet(*rows), rules_with(11 * LEASE_STEPS, backfill=False), NOW)
    assert list_assigned(found) == ["g0", "g1"]
    assert dict(found.waiting.items())["g3"][0] == "behind_queue"


def test_behind_a_gang_that_is_tried_later_no_reservation_keeps_capacity_in_flight() -> None:
    """linux-3 boots for the interrupted `r9`; `g3` is served after the gangs, by a machine of its own size."""
    rules = some_rules(
        {
            "pools": {
                "linux": {
                    "offerings": [
                        {"name": f"of-{cpus}", "price": cpus, "resources": {"cpus": cpus}} for cpus in (1, 10)
                    ]
                }
            },
            "scheduler": {"backfill": False, "interruption_grace": 60},
            "limits": {"work_per_tick": 11 * LEASE_STEPS},
        }
    )
    lease = a_lease("linux-4", resources={"cpus": 10})
    waiting = [a_gang(0, 1), a_gang(1, 1), a_gang(2, 1), a_gang(3, 1, "other", count=1)]
    rows: list[Row] = [
        *(a_slot(f"linux-{number}", offering="of-10", resources={"cpus": 10}) for number in (1, 2)),
        a_slot("linux-3", state="booting", offering="of-10", resources={"cpus": 10}),
        a_slot("linux-4", offering="of-10", resources={"cpus": 10}, interrupted_at=NOW),
        a_slot("linux-5", state="empty", epoch=0),
        a_reservation("r9", phase="leased", confirmed_at=NOW, leases=(lease,), resources={"cpus": 10}),
    ]
    found = plan(View([*rows, *waiting]), rules, NOW)
    assert list_assigned(found) == ["g0", "g1"]
    assert [each.offering for each in found.decisions if isinstance(each, Launch)] == ["of-1"]


def test_behind_a_gang_that_is_tried_later_a_reservation_that_fits_on_a_ready_slot_launches_nothing() -> None:
    """`g3` gets linux-3 when the gang `g2` was tried."""
    rules = rules_with(11 * LEASE_STEPS, backfill=False)
    slots = [a_slot(f"linux-{number}", resources={"cpus": 10}) for number in (1, 2, 3)]
    empty = [a_slot(f"linux-{number}", state="empty", epoch=0) for number in range(4, SLOTS + 1)]
    waiting = [a_gang(0, 1), a_gang(1, 1), a_gang(2, 1), a_gang(3, 1, "other", count=1)]
    found = plan(View([*slots, *empty, *waiting]), rules, NOW)
    assert list_assigned(found) == ["g0", "g1"]
    assert not [each for each in found.decisions if isinstance(each, Launch)]


def test_elastic_instances_are_granted_in_rank_order_as_far_as_the_budget_allows() -> None:
    more = (Component(name="more", count=30, kind="elastic", resources={"cpus": 1}),)
    rows = [a_gang(0, 1, count=1, more=more), a_gang(1, 1, count=1, more=more), a_gang(2, 1, "other", 1, more=more)]
    found = plan(a_fleet(*rows), rules_with(40 * 25), NOW)
    grants = [each.reservation for each in found.decisions if isinstance(each, Grant)]
    assert {name: grants.count(name) for name in grants} == {"g0": 30, "g1": 10, "g2": 30}
    assert found.wake_at == NOW


def test_launches_have_their_own_budget_and_continue_in_a_later_tick() -> None:
    rows = [a_gang(number, 9 - number / 100, count=3) for number in range(6)]
    empty = [a_slot(f"linux-{number}", state="empty", epoch=0) for number in range(1, SLOTS + 1)]
    view, rules = View([*empty, *rows]), rules_with(5)
    found = plan(view, rules, NOW)
    assert 3 <= len(found.decisions) < 18
    assert found.wake_at == NOW


def a_held_gang(number: int, principal: str = "greedy") -> Reservation:
    """A gang with a lease of one cpu on each slot; no lease has a share of the spare cpus yet."""
    leases = [a_lease(slot=f"linux-{at}", component=f"rank.{at}", resources={"cpus": 1}) for at in range(1, SLOTS + 1)]
    held = a_gang(number, 1, principal, count=SLOTS)
    return msgspec.structs.replace(held, phase="leased", token=number + 1, leased_at=NOW, leases=tuple(leases))


def list_shared(found: Plan) -> set[str]:
    return {each.reservation for each in found.decisions if isinstance(each, Cores)}


def test_cores_of_gangs_change_in_rotation_and_those_of_another_principal_at_once() -> None:
    view = a_fleet(a_held_gang(0), a_held_gang(1), a_held_gang(2), a_held_gang(3, "other"))
    rules, cache = rules_with(CORES_STEPS * SLOTS), PlanCache()
    turns = [list_shared(plan(view, rules, NOW + tick, cache)) for tick in range(4)]
    assert turns == [{"g0", "g3"}, {"g1", "g3"}, {"g2", "g3"}, {"g0", "g3"}]
    assert plan(view, rules, NOW + 4, cache).wake_at == NOW + 4
    assert list_shared(plan(view, rules_with(0), NOW, cache)) == {"g0", "g1", "g2", "g3"}


def test_cores_of_two_leases_count_for_the_budget() -> None:
    leases = [a_lease(slot=f"linux-{at}", component=f"rank.{at - 1}", resources={"cpus": 1}) for at in (1, 2)]
    view = a_fleet(*(msgspec.structs.replace(a_held_gang(number), leases=tuple(leases)) for number in range(2)))
    for most, turns in ((4, [{"g0"}, {"g1"}]), (5, [{"g0", "g1"}] * 2)):
        rules, cache = rules_with(most), PlanCache()
        assert [list_shared(plan(view, rules, NOW + tick, cache)) for tick in range(2)] == turns


def test_launches_for_elastic_instances_count_for_the_budget() -> None:
    more = (Component(name="more", count=SLOTS, kind="elastic", resources={"cpus": 10}),)
    lease = a_lease(slot="linux-1", component="rank", resources={"cpus": 10})
    waiting = a_gang(0, 10, count=1, more=more)
    held = msgspec.structs.replace(waiting, phase="leased", token=1, leased_at=NOW, leases=(lease,))
    empty = [a_slot(f"linux-{number}", state="empty", epoch=0) for number in range(2, SLOTS + 1)]
    pools = {"linux": {"max_slots": SLOTS, "resources": {"cpus": 10}, "launch_for_elastic": True}}
    rules = some_rules({"pools": pools, "limits": {"work_per_tick": 5}})
    found = plan(View([a_slot("linux-1", resources={"cpus": 10}), *empty, held]), rules, NOW)
    assert sum(isinstance(each, Launch) for each in found.decisions) == 5


def test_a_simulation_has_no_bound() -> None:
    cluster = build_cluster({"pools": {"linux": {"system": SYSTEM, "max_slots": 1}}}, CloudDocument())
    assert cluster.ports.rules().limits.work_per_tick == 0
