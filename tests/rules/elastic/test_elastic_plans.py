"""Sums that must hold for every plan with elastic components, whatever the fleet and the setting of `elastic`."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.decisions import Assign, Claim, Grant, Preempt, Restart, Revoke
from scheduler.model.reservations import Reservation, list_instances
from tests.generated import TIMES
from tests.rules.fleets import QUICKLY, fleets
from tests.rules.playing import Document, act, play_out, ticks
from tests.rules.test_plans import (
    each_waiting_reservation_has_a_reason,
    every_decision_is_accepted,
    no_reservation_is_lost,
    no_slot_is_overfull,
    nothing_is_due_before_it_wakes,
    spare_cores_are_shared,
    the_plan_is_pure,
)
from tests.rules.watching import Seen, watch
from tests.rules.zoe import a_lab, component, decided, submitted

pytestmark = pytest.mark.no_cover
SOME = settings(QUICKLY, max_examples=15 * TIMES)
FEW = settings(QUICKLY, max_examples=8 * TIMES)


def essential_instances_are_never_reclaimed(seen: Seen) -> None:
    rows = {row.id: row for row in seen.before if isinstance(row, Reservation)}
    for decision in seen.plan.decisions:
        if isinstance(decision, Revoke):
            elastic = {each.name for each in list_instances(rows[decision.reservation].request, "elastic")}
            assert decision.component in elastic


def nothing_is_taken_back_where_the_setting_only_gives(seen: Seen) -> None:
    for decision in seen.plan.decisions:
        if isinstance(decision, Revoke) and seen.rules.scheduler.elastic in {"rigid", "malleable"}:
            assert decision.reason != "reclaimed"


def what_is_revoked_for_an_assignment_comes_before_it(seen: Seen) -> None:
    served: set[str] = set()
    for decision in seen.plan.decisions:
        match decision:
            case Assign():
                served.add(decision.reservation)
            case Revoke(room_for=str() as name):
                assert name not in served
            case Grant(reservation=name) if name in {row.id for row in seen.before if _is_pending(row)}:
                assert name in served
            case _:
                pass


def a_second_tick_decides_nothing(seen: Seen) -> None:
    """Every reservation holds what it can hold, except preempted ones, gangs that a later tick tries, and reservations
    that failed in this tick and restart without delay. The elastic instances of a reservation that claims slots keep
    capacity from the next tick on.
    """
    if any(isinstance(each, Preempt) for each in seen.plan.decisions):
        return
    elastic = {row.id for row in seen.before if isinstance(row, Reservation) and list_instances(row.request, "elastic")}
    if any(isinstance(each, Claim) and each.reservation in elastic for each in seen.plan.decisions):
        return
    found = seen.replan(seen.after, seen.now).decisions
    if any(isinstance(each, Restart) for each in found):
        assert seen.plan.wake_at == seen.now
        return
    assert [each for each in found if isinstance(each, Assign | Claim | Grant | Revoke)] == []


def no_lease_without_all_that_is_essential(seen: Seen) -> None:
    for row in seen.after:
        if isinstance(row, Reservation) and row.phase == "leased":
            held = {lease.component for lease in row.leases if lease.kind == "essential"}
            assert held == {each.name for each in list_instances(row.request, "essential")}


def reclaimed_capacity_goes_to_a_reservation(seen: Seen) -> None:
    """With a grace period, a preemption is the claim of its reservation."""
    served = {each.reservation for each in seen.plan.decisions if isinstance(each, Assign | Claim | Preempt)}
    revoked = {each.room_for for each in seen.plan.decisions if isinstance(each, Revoke) and each.room_for}
    assert revoked <= served


def instances_are_granted_lowest_index_first(seen: Seen) -> None:
    """A grant leaves no instance of the same component with a lower index without its lease, unless its holder gave it
    back.
    """
    rows = {row.id: row for row in seen.after if isinstance(row, Reservation)}
    for decision in seen.plan.decisions:
        if isinstance(decision, Grant):
            component, _, index = decision.component.partition(".")
            row = rows[decision.reservation]
            held = {lease.component for lease in row.leases} | {*row.declined}
            assert held >= {f"{component}.{lower}" for lower in range(int(index or 0))}


def by_quota(fleet: Document) -> Document:
    """The same fleet with the queue `quota`: some accounts have saved, other reservations have no account or nothing
    left.
    """
    scheduler = {**fleet["config"].get("scheduler", {}), "queue": "quota"}
    accounts = {"rich": {"balance": [50, 50]}, "poor": {"charge_rate": [0, 1], "max_charge_seconds": 9}}
    for wish in [*fleet["reservations"], *(each["submit"] for each in fleet["timeline"] if "submit" in each)]:
        wish["account"] = [None, "rich", "poor"][int(wish["id"][1:]) % 3]
    return {**fleet, "config": {**fleet["config"], "scheduler": scheduler, "accounts": accounts}}


def _is_pending(row: object) -> bool:
    return isinstance(row, Reservation) and row.phase == "pending"


@SOME
@given(fleets(elastic=True))
def test_every_plan_with_elastic_instances_keeps_to_the_rules(fleet: Document) -> None:
    watch(
        fleet,
        no_slot_is_overfull,
        no_reservation_is_lost,
        each_waiting_reservation_has_a_reason,
        every_decision_is_accepted,
        essential_instances_are_never_reclaimed,
        nothing_is_taken_back_where_the_setting_only_gives,
        what_is_revoked_for_an_assignment_comes_before_it,
        reclaimed_capacity_goes_to_a_reservation,
        no_lease_without_all_that_is_essential,
        instances_are_granted_lowest_index_first,
        the_plan_is_pure,
        spare_cores_are_shared,
    )


@SOME
@given(fleets(elastic=True), st.booleans())
def test_a_tick_serves_all_that_it_can_and_wakes_when_the_next_work_falls_due(fleet: Document, wakes: bool) -> None:
    """Work is conserved: on what a tick leaves, another one finds nothing to do."""
    watch({**fleet, "wakes": wakes, "kicks": wakes}, nothing_is_due_before_it_wakes)


@FEW
@given(fleets(elastic=True).map(by_quota))
def test_under_quota_a_tick_serves_all_that_it_can(fleet: Document) -> None:
    watch(
        fleet,
        no_reservation_is_lost,
        every_decision_is_accepted,
        essential_instances_are_never_reclaimed,
        nothing_is_taken_back_where_the_setting_only_gives,
        what_is_revoked_for_an_assignment_comes_before_it,
        reclaimed_capacity_goes_to_a_reservation,
        no_lease_without_all_that_is_essential,
        instances_are_granted_lowest_index_first,
        a_second_tick_decides_nothing,
        the_plan_is_pure,
    )


ROOM: Document = {
    "linux": {"system": "x", "lease_ttl": 0, "max_slots": 2, "resources": {"units": 1}},
    "hosts": {"system": "x", "provider": "static", "offline_timeout": 1000, "lease_ttl": 0},
}


@pytest.mark.parametrize("elastic", ["yielding", "flexible", "malleable"])
def test_a_new_holder_gets_the_room_that_a_gang_keeps_in_the_next_tick(elastic: str) -> None:
    """The gang waits for linux-2, and keeps linux-1 and the host. In the next tick the new holder is served before the
    gang, which then keeps nothing, so that the last reservation gets the host.
    """
    parts = [component("main", 1, 0), component("more", 1, 1, "elastic")]
    wishes: list[Document] = [
        {"id": "gang", "system": "x", "components": [component("w", 3, 1)]},
        {"id": "holder", "pool": "linux", "components": parts},
        {"id": "last", "system": "x", "resources": {"units": 1}},
    ]
    document: Document = {
        "config": {"scheduler": {"elastic": elastic, "preemption_grace": 0}, "pools": ROOM},
        "slots": [
            {"id": "linux-1", "pool": "linux", "state": "ready"},
            {"id": "linux-2", "pool": "linux", "state": "booting"},
            {"id": "hosts-1", "pool": "hosts"},
        ],
        "cloud": {"bind": 9},
        "timeline": [submitted(1, *wishes), *ticks(1, 1)],
    }
    watch(document, nothing_is_due_before_it_wakes)
    first, second = play_out(document).ticks
    assert first == ["assign holder linux-1", "gang waits booting", "last waits at_max_slots"]
    assert sorted(second) == ["assign last hosts-1", "gang waits at_max_slots", "grant holder more linux-1 room"]


def test_a_reservation_that_is_leased_later_may_make_an_earlier_one_worth_its_room() -> None:
    """Under `flexible` the gang would use 3 units in place of the 3 of `first`, so it is passed over. The instance of
    `last` fits beside the gang, but not beside that of `first`: with `last` leased, the gang raises the use.
    """
    wishes: list[Document] = [
        {"id": "first", "system": "x", "components": [component("w", 1, 2), component("more", 1, 3, "elastic")]},
        {"id": "gang", "system": "x", "components": [component("w", 3, 1)]},
        {"id": "last", "system": "x", "components": [component("w", 1, 0), component("more", 1, 2, "elastic")]},
    ]
    hosts = {"system": "x", "provider": "static", "offline_timeout": 1000, "lease_ttl": 0, "max_leases_per_slot": 3}
    document: Document = {
        "config": {"scheduler": {"elastic": "flexible", "preemption_grace": 30}, "pools": {"hosts": hosts}},
        "slots": [
            {"id": "hosts-1", "pool": "hosts", "resources": {"units": 3}},
            {"id": "hosts-2", "pool": "hosts", "resources": {"units": 4}},
        ],
        "timeline": [submitted(0, *wishes), *ticks(0, 0, 1)],
    }
    watch(document, nothing_is_due_before_it_wakes)
    first, second, third = play_out(document).ticks
    assert first == [
        *("assign first hosts-1", "assign last hosts-1", "grant first more hosts-2 room"),
        "gang waits gang_incomplete",
    ]
    assert second == ["revoke first more hosts-2 reclaimed", "gang waits no_capacity"]
    assert third == ["gang waits no_capacity"]


def test_an_instance_that_was_granted_gives_its_use_back_in_its_own_tick_only() -> None:
    """Under `flexible` the gang would take both places of hosts-2 in the first tick, which raises the use by nothing.
    In the second one hosts-2 has one use left, so the gang takes hosts-1, too, whose cpu nothing uses.
    """
    parts = [component("w", 1, 0), component("x", 1, 0, "elastic"), component("y", 2, 0, "elastic")]
    wishes: list[Document] = [
        {"id": "first", "system": "x", "components": parts},
        {"id": "gang", "system": "x", "components": [component("w", 2, 1)]},
    ]
    pool = {"system": "x", "provider": "static", "offline_timeout": 1000, "lease_ttl": 0, "max_leases_per_slot": 2}
    document: Document = {
        "config": {
            "scheduler": {"elastic": "flexible", "preemption_grace": 30},
            "pools": {"hosts": {**pool, "max_uses": 3}},
        },
        "slots": [{"id": "hosts-1", "pool": "hosts", "resources": {"units": 1}}, {"id": "hosts-2", "pool": "hosts"}],
        "timeline": [submitted(0, *wishes), *ticks(0, 0)],
    }
    watch(document, nothing_is_due_before_it_wakes)
    first, second = play_out(document).ticks
    assert first[0] == "assign first hosts-1"
    assert first[-1] == "gang waits no_capacity"
    assert second == [
        *("revoke first y.1 hosts-2 reclaimed", "revoke first x hosts-1 reclaimed", "gang waits no_capacity")
    ]


PART = st.builds(
    lambda count, units, gpus: {"kind": "elastic", "count": count, "resources": {"units": units, "gpus": gpus}},
    st.integers(1, 4),
    st.integers(1, 2),
    st.integers(0, 1),
)
WISH = st.tuples(st.integers(1, 4), st.lists(PART, max_size=2))
"""Units of the essential instance, and the elastic components."""


@st.composite
def labs(draw: st.DrawFn, words: Callable[[st.DrawFn], list[Document]] = lambda _: []) -> Document:
    """Hosts with units and gpus, and a few reservations that arrive one after the other or at once; `words` are other
    actions.
    """
    wishes = [
        {
            "id": f"r{number}",
            "system": "sim",
            "components": [component("core", 1, core), *({"name": f"c{at}", **part} for at, part in enumerate(parts))],
        }
        for number, (core, parts) in enumerate(draw(st.lists(WISH, min_size=2, max_size=4)))
    ]
    hosts: list[Document] = [
        {"id": f"lab-{number}", "pool": "lab", "machine": f"m{number}", "resources": {"units": units, "gpus": 2}}
        for number, units in enumerate(draw(st.lists(st.integers(2, 9), min_size=2, max_size=3)), 1)
    ]
    timeline = [submitted(draw(st.sampled_from([0, 0, 1])), wish) for wish in wishes] + words(draw)
    scheduler = {"preemption_grace": draw(st.sampled_from([0, 0, 4])), "profile": draw(st.sampled_from(PROFILES))}
    elastic = draw(st.sampled_from(["flexible", "yielding", "yielding"]))
    timeline.sort(key=lambda each: each["at"])
    return a_lab(*timeline, *ticks(3, 9), elastic=elastic, slots=hosts, scheduler=scheduler)


PROFILES = ("pack", "spread")
MANY = settings(QUICKLY, max_examples=40 * TIMES)


@MANY
@given(labs())
def test_the_instances_with_the_lowest_indices_of_a_component_are_held(lab: Document) -> None:
    watch(lab, instances_are_granted_lowest_index_first)


@MANY
@given(labs(lambda draw: [act(2, "register", _come_back(draw(st.integers(3, 9))))]))
def test_a_resource_that_a_host_no_longer_names_counts_as_0(lab: Document) -> None:
    """Orchard: whatever was granted before, the decisions are those for a host with 0 of the resource."""
    stated = json.loads(json.dumps(lab))
    for item in stated["timeline"]:
        if "register" in item:
            item["register"]["resources"]["gpus"] = 0
    assert decided(lab) == decided(stated)


def _come_back(units: int) -> Document:
    return {"id": "lab-1", "pool": "lab", "machine": "m1", "resources": {"units": units}}
