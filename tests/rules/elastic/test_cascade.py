"""The cascade looks for elastic instances to reclaim only where these could help."""

from collections.abc import Sequence
from itertools import permutations
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scheduler.model.decisions import Assign, Grant, Launch, Revoke
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.resources import Resources
from scheduler.model.view import Row, View
from scheduler.policy.capacity.requests import Demand
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.elastic.assignment import RatedSlots
from scheduler.policy.elastic.cascade import link_pools
from scheduler.policy.elastic.instances import MissingInstances, list_groups
from scheduler.policy.plan import plan
from tests.builders import NOW, SYSTEM, a_component, a_lease, a_reservation, a_slot, some_rules
from tests.rules.quotas import a_host as quota_host
from tests.rules.quotas import quota_rules, runs, waits

ARM = "aarch64-linux"


ONE: Resources = {"cpus": 1, "gpus": 0}


def an_application(number: int, leases: tuple[Lease, ...], system: str = SYSTEM, **changes: Any) -> Reservation:
    """One essential and one elastic instance, each of one core; it is leased."""
    components = (a_component("main", resources=ONE), a_component("more", kind="elastic", resources=ONE))
    fields: dict[str, Any] = {"sequence": number, "system": system, "components": components, **changes}
    return a_reservation(f"r{number}", phase="leased", leased_at=NOW, leases=leases, **fields)


def a_part(slot: str, component: str = "main", **changes: object) -> Lease:
    kind = "elastic" if component == "more" else "essential"
    return a_lease(slot, component=component, kind=kind, resources=ONE, confirmed_at=NOW, **changes)


def decide(*rows: Row, size: float = 2, **scheduler: object) -> list[str]:
    """`ACTION RESERVATION SLOT` of the decisions on elastic instances; linux-N and arm-N have `size` cores."""
    sized = {"max_slots": 9, "resources": {"cpus": size}}
    rules = some_rules(
        {
            "scheduler": {"elastic": "yielding", "preemption_grace": 0, **scheduler},
            "pools": {"linux": sized, "arm": {"system": ARM, **sized}},
        }
    )
    found = plan(View(rows), rules, NOW)
    return [
        f"{'grant' if isinstance(each, Grant) else 'revoke'} {each.reservation} {each.slot}"
        for each in found.decisions
        if isinstance(each, Grant | Revoke)
    ]


def test_an_elastic_instance_on_another_system_is_not_reclaimed() -> None:
    lacking = an_application(1, (a_part("linux-1"),))
    standing = an_application(2, (a_part("arm-1"), a_part("arm-1", "more")), ARM)
    essential = an_application(3, (a_part("linux-1"),), components=(a_component(resources={"cpus": 1}),))
    assert decide(a_slot("linux-1"), a_slot("arm-1"), lacking, standing, essential) == []


def test_an_elastic_instance_of_a_later_reservation_is_reclaimed_for_an_earlier_one() -> None:
    lacking = an_application(1, (a_part("linux-1"),))
    standing = an_application(2, (a_part("linux-1"), a_part("linux-1", "more")))
    assert decide(a_slot("linux-1"), lacking, standing, size=3) == ["revoke r2 linux-1", "grant r1 linux-1"]


def test_an_instance_that_uses_nothing_of_a_resource_that_its_slot_lacks_stays() -> None:
    """Under `spread` the earlier reservation would take the slot of an instance that is lifted first."""
    lacking = an_application(1, (a_part("linux-2"),))
    standing = an_application(2, (a_part("linux-2"), a_part("linux-1", "more")))
    filling = a_reservation("r3", phase="leased", resources={"cpus": 2}, leases=(a_lease(resources={"cpus": 2}),))
    rows: list[Row] = [a_slot("linux-1"), a_slot("linux-2"), lacking, standing, filling]
    assert decide(*rows, size=3, profile="spread") == ["grant r1 linux-2"]


def test_an_instance_that_finds_nothing_to_reclaim_is_launched_for_once() -> None:
    """The machine of the instance behind it takes no more leases, so a reclaim would not help."""
    components = (a_component(resources={"cpus": 1}), a_component("more", kind="elastic", resources={"cpus": 2}))
    main = a_lease(resources={"cpus": 1}, confirmed_at=NOW)
    more = a_lease(component="more", kind="elastic", resources={"cpus": 2}, confirmed_at=NOW)
    lacking = an_application(1, (main,), components=components)
    standing = an_application(2, (main, more), components=components)
    slots: list[Row] = [
        a_slot("linux-1", uses=3),
        *(a_slot(f"linux-{number}", state="empty", epoch=0) for number in (2, 3)),
    ]
    pool = {"max_slots": 3, "max_uses": 3, "launch_for_elastic": True, "resources": {"cpus": 4}}
    rules = some_rules({"scheduler": {"elastic": "yielding"}, "pools": {"linux": pool}})
    found = plan(View([*slots, lacking, standing]), rules, NOW)
    assert [each.slot for each in found.decisions if isinstance(each, Launch)] == ["linux-2"]


def test_an_instance_on_a_slot_with_free_capacity_stays() -> None:
    """Under `spread` the earlier reservation would take the slot of an instance that is lifted first."""
    lacking = an_application(1, (a_part("linux-2"),))
    standing = an_application(2, (a_part("linux-3"), a_part("linux-1", "more")))
    filling = [
        a_reservation(name, phase="leased", resources={"cpus": cpus}, leases=(a_lease(slot, resources={"cpus": cpus}),))
        for name, slot, cpus in (("r3", "linux-1", 1), ("r4", "linux-3", 2))
    ]
    rows: list[Row] = [*(a_slot(f"linux-{number}") for number in (1, 2, 3)), lacking, standing, *filling]
    assert decide(*rows, size=3, profile="spread") == ["grant r1 linux-2"]


def test_a_grant_waits_for_the_grace_on_a_slot_that_quota_has_filled_in_the_same_tick() -> None:
    rules = quota_rules({"resources": {"cpus": 4}}, elastic="yielding", preemption_grace=30)
    earlier = an_application(1, (a_part("hosts-2"),))
    later = an_application(2, (a_part("hosts-1"), a_part("hosts-1", "more")))
    filling = runs("r3", a_lease("hosts-2", resources={"cpus": 3}, level=5, confirmed_at=NOW), resources={"cpus": 3})
    rows: list[Row] = [quota_host(1), quota_host(2), earlier, later, filling, waits("r4", resources={"cpus": 2})]
    found = plan(View(rows), rules, NOW).decisions
    assert [each.reservation for each in found if isinstance(each, Assign)] == ["r4"]
    assert [(each.reservation, each.revoke_by) for each in found if isinstance(each, Revoke)] == [("r2", NOW + 30)]
    assert not any(isinstance(each, Grant) for each in found)


def test_a_group_that_lacked_nothing_is_found_when_an_instance_of_it_is_lifted_again() -> None:
    row = an_application(1, (a_part("linux-1"),))
    cycle = CycleState(View([a_slot("linux-1"), row]), some_rules({"pools": {"linux": {"max_slots": 9}}}), NOW)
    [group] = list_groups(cycle, row, cycle.demand_of(row), 0, row.leases)
    missing = MissingInstances()
    for count, expected in ((1, group), (0, None), (1, group)):
        group.missing = count
        missing.note(group)
        assert missing.find_next(group.need.likeness, group.rank) is expected


def test_a_rated_slot_on_which_a_lease_was_placed_is_rated_again_when_a_search_reaches_it() -> None:
    cycle = CycleState(View([a_slot("linux-1"), a_slot("linux-2")]), some_rules(), NOW)
    first, second = cycle.slot_infos.values()
    first.free = second.free = None
    rated = RatedSlots[int](lambda slot_info: slot_info.given, [])
    rated.add(first)
    rated.add(second)
    assert rated.find_first() == (0, first)
    first.given = 2
    assert rated.find_first() == (0, second)


@pytest.mark.parametrize("wishes", list(permutations([("a", "b"), ("b", "c"), ("d",)])))
def test_pools_are_linked_by_a_chain_of_requests_that_may_use_two_of_them(wishes: Sequence[tuple[str, ...]]) -> None:
    demands = [cast("Demand", SimpleNamespace(pools=pools)) for pools in wishes]
    linked = link_pools(demands)
    assert linked.keys() == set("abcd")
    assert linked["a"] == linked["b"] == linked["c"] != linked["d"]


def test_a_gang_reclaims_instances_on_slots_that_take_one_lease_each() -> None:
    parts = (a_component(), a_component("more", kind="elastic", count=2))
    names = (("linux-1", "main"), ("linux-2", "more.0"), ("linux-3", "more.1"))
    kinds: list[Any] = ["essential", "elastic", "elastic"]
    leases = [
        a_lease(slot, component=name, kind=kind, confirmed_at=NOW)
        for (slot, name), kind in zip(names, kinds, strict=True)
    ]
    holder = an_application(1, tuple(leases), components=parts)
    gang = a_reservation("g", sequence=2, components=(a_component(count=2),))
    rules = some_rules(
        {
            "scheduler": {"elastic": "yielding", "preemption_grace": 0},
            "pools": {"linux": {"max_slots": 3, "max_leases_per_slot": 1}},
        }
    )
    found = plan(View([*(a_slot(slot) for slot, _ in names), holder, gang]), rules, NOW).decisions
    assert [each.slot for each in found if isinstance(each, Revoke)] == ["linux-3", "linux-2"]
    assert [[lease.slot for lease in each.leases] for each in found if isinstance(each, Assign)] == [
        ["linux-3", "linux-2"]
    ]
