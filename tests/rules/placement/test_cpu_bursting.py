"""Spare cores of a slot: the number that each of its leases may use, decided when it changes and in no other tick."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from scheduler.model.decisions import Cores, Plan
from scheduler.model.view import View
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from scheduler.simulation.runner import Runner
from scheduler.simulation.scenario import read_scenario
from scheduler.simulation.snapshot import make_snapshot
from tests.builders import NOW, a_component, a_lease, a_reservation, a_slot, some_rules
from tests.rules.playing import Document, Played, act, play_out, tick, ticks
from tests.rules.quotas import a_host as quota_host
from tests.rules.quotas import an_account, quota_rules, runs, waits
from tests.rules.zoe import submitted

POOL: Document = {
    "system": "sim",
    "provider": "static",
    "max_leases_per_slot": 100,
    "lease_ttl": 0,
    "offline_timeout": 1e9,
    "resources": {"cpus": 8},
}


def asks(name: str, cpus: float, **fields: Any) -> Document:
    return {"id": name, "system": "sim", "resources": {"cpus": cpus}, **fields}


def a_host(
    *timeline: Document, cpus: float = 8, pool: Document | None = None, scheduler: Document | None = None, **parts: Any
) -> Document:
    """Return one slot lab-1 with this number of cpus."""
    config = {"scheduler": {"preemption_grace": 0, **(scheduler or {})}, "pools": {"lab": {**POOL, **(pool or {})}}}
    slots = [{"id": "lab-1", "pool": "lab", "resources": {"cpus": cpus}}]
    return {"config": config, "slots": slots, "timeline": list(timeline), **parts}


def cores(*timeline: Document, **parts: Any) -> list[str]:
    return play_out(a_host(*timeline, **parts)).cores


BOTH = submitted(0, asks("r1", 1), asks("r2", 2))


def test_spare_cores_are_shared_in_equal_parts() -> None:
    """A slot of 8 cpus with leases of 1 and 2: they may use 3.5 and 4.5."""
    assert cores(BOTH, tick(0)) == ["0 r1 main lab-1 3.5", "0 r2 main lab-1 4.5"]


def test_leases_of_a_slot_record_start_with_their_own_cpus() -> None:
    held = [{"reservation": "r1"}, {"reservation": "r2"}]
    given = a_host(tick(0), reservations=[asks("r1", 1, phase="leased"), asks("r2", 2, phase="leased")])
    given["slots"][0]["leases"] = held
    assert play_out(given).cores == ["0 r1 main lab-1 3.5", "0 r2 main lab-1 4.5"]


def test_a_decision_has_the_fields_of_the_contract() -> None:
    [line] = [each for each in play_out(a_host(submitted(0, asks("r1", 1)), tick(0))).lines if "tick" in each]
    assert line["decisions"][-1] == {
        "do": "cores",
        "reservation": "r1",
        "component": "main",
        "slot": "lab-1",
        "cpus": 8.0,
    }


def test_only_a_changed_figure_is_decided() -> None:
    """Ticks that change nothing decide nothing; when one lease ends, the others share its part."""
    found = cores(BOTH, *ticks(0, 1, 2), act(3, "release", "r1"), *ticks(3, 4))
    assert found == ["0 r1 main lab-1 3.5", "0 r2 main lab-1 4.5", "3 r2 main lab-1 8"]


def test_a_lease_that_takes_the_last_cores_ends_the_part_of_the_others_in_the_same_tick() -> None:
    found = cores(submitted(0, asks("r1", 3)), tick(0), submitted(1, asks("r2", 5)), tick(1))
    assert found == ["0 r1 main lab-1 8", "1 r1 main lab-1 3"]


ENDS: dict[str, tuple[list[Document], Document]] = {
    "it expires in this tick": ([tick(10)], {"ttl": 10}),
    "it is cancelled before": ([act(10, "cancel", "r1"), tick(10)], {}),
    "it failed": ([act(10, "fail", {"reservation": "r1"}), tick(10)], {}),
    "it is declined": ([act(10, "decline", "r1"), tick(10)], {}),
    "it is suspended": ([act(10, "suspend", "r1"), tick(10)], {}),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_cores_of_a_lease_that_ends_are_shared_in_the_tick_that_sees_it(case: str) -> None:
    timeline, fields = ENDS[case]
    played = play_out(a_host(submitted(0, asks("r1", 1, **fields), asks("r2", 2)), tick(0), *timeline))
    assert [each for each in played.cores if each.startswith("10 ")] == ["10 r2 main lab-1 8"]


def test_a_slot_that_is_full_or_smaller_than_its_leases_has_nothing_to_share() -> None:
    full = submitted(0, asks("r1", 5), asks("r2", 3))
    smaller = act(1, "register", {"id": "lab-1", "pool": "lab", "machine": "m", "resources": {"cpus": 4}})
    larger = act(2, "register", {"id": "lab-1", "pool": "lab", "machine": "m", "resources": {"cpus": 10}})
    assert cores(full, tick(0), smaller, tick(1)) == []
    assert cores(full, tick(0), smaller, tick(1), larger, tick(2)) == ["2 r1 main lab-1 6", "2 r2 main lab-1 4"]


def test_a_slot_that_becomes_smaller_than_its_leases_leaves_each_its_own_cpus() -> None:
    smaller = act(1, "register", {"id": "lab-1", "pool": "lab", "machine": "m", "resources": {"cpus": 4}})
    found = cores(submitted(0, asks("r1", 5), asks("r2", 2)), tick(0), smaller, tick(1))
    assert found[2:] == ["1 r1 main lab-1 5", "1 r2 main lab-1 2"]


def test_a_lease_without_cpus_gets_its_part_of_the_spare_ones() -> None:
    named = {"id": "r2", "system": "sim"}
    assert cores(submitted(0, asks("r1", 2), named), tick(0)) == ["0 r1 main lab-1 5", "0 r2 main lab-1 3"]


def test_a_slot_that_counts_leases_only_has_no_cores() -> None:
    counting = {"resources": None}
    config = {"pools": {"lab": {**POOL, **counting}}}
    document = {"config": config, "slots": [{"id": "lab-1", "pool": "lab"}], "timeline": [BOTH, tick(0)]}
    assert play_out(document).cores == []


def test_thirds_are_shared_without_a_remainder() -> None:
    """Rounding errors of sums do not change a figure in every tick."""
    found = cores(submitted(0, *(asks(f"r{number}", 0.1) for number in range(3))), *ticks(0, 1, 2))
    assert found == [f"0 r{number} main lab-1 2.666666667" for number in range(3)]


def test_a_reservation_that_moves_within_a_tick_starts_with_its_own_cpus() -> None:
    """r1 fails over from lab-2 to lab-1: it counts on lab-1, and lab-2 has no lease left."""
    config = {"scheduler": {"restart_delay": 0}, "pools": {"lab": POOL}}
    slots = [{"id": name, "pool": "lab", "resources": {"cpus": 4}} for name in ("lab-1", "lab-2")]
    timeline = [
        submitted(0, asks("r1", 3, restart_policy="on_failure"), asks("r2", 2)),
        tick(0),
        act(1, "lose", "lab-1"),
        *ticks(1, 2),
    ]
    found = play_out({"config": config, "slots": slots, "timeline": timeline}).cores
    assert found == ["0 r1 main lab-1 4", "0 r2 main lab-2 4"]


PARTS: Document = {
    "id": "r1",
    "system": "sim",
    "components": [
        {"name": "core", "resources": {"cpus": 1}},
        {"name": "more", "count": 2, "kind": "elastic", "resources": {"cpus": 2}},
    ],
}


def test_granted_and_reclaimed_elastic_instances_share_too() -> None:
    """With a grace period r1's instance may use its cpus until it is over; r2, which claims its slot, has no figure
    before.
    """
    found = cores(
        submitted(0, PARTS),
        tick(0),
        submitted(5, asks("r2", 4)),
        tick(5),
        act(6, "surrender", {"reservation": "r1", "component": "more.1"}),
        tick(6),
        cpus=8,
        scheduler={"preemption_grace": 30},
    )
    assert found == [
        "0 r1 core lab-1 2",
        "0 r1 more.0 lab-1 3",
        "0 r1 more.1 lab-1 3",
        *("6 r1 core lab-1 1.333333333", "6 r1 more.0 lab-1 2.333333333", "6 r2 main lab-1 4.333333333"),
    ]


def test_an_instance_that_is_reclaimed_at_once_leaves_its_part_in_the_same_tick() -> None:
    found = cores(submitted(0, PARTS), tick(0), submitted(5, asks("r2", 4)), tick(5))
    assert found[3:] == [
        *("5 r1 core lab-1 1.333333333", "5 r1 more.0 lab-1 2.333333333", "5 r2 main lab-1 4.333333333")
    ]


def test_an_instance_that_dies_leaves_its_part_to_the_others() -> None:
    found = cores(
        submitted(0, {**PARTS, "components": [*PARTS["components"][:1], {**PARTS["components"][1], "count": 1}]}),
        tick(0),
        act(1, "surrender", {"reservation": "r1", "component": "more"}),
        tick(1),
    )
    assert found == ["0 r1 core lab-1 3.5", "0 r1 more lab-1 4.5", "1 r1 core lab-1 8"]


def test_on_a_draining_slot_the_remaining_leases_share_more() -> None:
    found = cores(BOTH, tick(0), act(1, "drain", "lab-1"), act(2, "release", "r1"), tick(2))
    assert found[2:] == ["2 r2 main lab-1 8"]


def test_share_cores_switches_sharing_off_and_on_again() -> None:
    """If it is off, each lease may use its own cpus. It is a setting of the system, as every key of the scheduler."""
    off, on = {"scheduler": {"share_cores": False}}, {"scheduler": {"share_cores": True}}
    found = cores(BOTH, tick(0), act(1, "rules", off), *ticks(1, 2), act(3, "rules", on), *ticks(3, 4))
    assert found == [
        *("0 r1 main lab-1 3.5", "0 r2 main lab-1 4.5"),
        *("1 r1 main lab-1 1", "1 r2 main lab-1 2"),
        *("3 r1 main lab-1 3.5", "3 r2 main lab-1 4.5"),
    ]
    assert cores(BOTH, tick(0), scheduler={"system": {"sim": {"share_cores": False}}}) == []


def test_a_plan_that_is_late_sets_no_wrong_limit() -> None:
    """r1 ends between the plan and its commit: the limit of r2 is decided again in the next tick."""
    played = play_out(a_host(BOTH, tick(0, act(0, "cancel", "r1")), tick(1)))
    first = next(line for line in played.lines if "tick" in line)
    skipped = [each for each in first["decisions"] if each["do"] == "cores"]
    assert [(each["reservation"], each.get("skipped")) for each in skipped] == [
        ("r1", "the reservation does not have this lease any more"),
        ("r2", "the spare CPUs of lab-1 have changed"),
    ]
    assert played.cores == ["1 r2 main lab-1 8"]


def shown(played: Played) -> list[float | None]:
    return [lease.get("cores") for slot in played.state["slots"] for lease in slot["leases"]]


def test_the_state_shows_the_figures_and_a_snapshot_keeps_them() -> None:
    document = a_host(BOTH, tick(0))
    assert shown(play_out(document)) == [3.5, 4.5]
    player = Runner(read_scenario(document))
    list(player.play())
    rows, rules = list(player.cluster.store.read_rows()), player.cluster.ports.rules()
    made = make_snapshot(rows, document["config"], rules, {}, 0)
    again = play_out(json.loads(json.dumps(made)))
    assert (shown(again), again.cores) == ([3.5, 4.5], [])


def test_two_preemptions_of_one_tick_share_the_spare_cores_of_both_slots() -> None:
    rules = quota_rules({"resources": {"cpus": 4}, "max_leases_per_slot": 1}, share_cores=True)
    lease = {"level": 5, "resources": {"cpus": 1}, "charged_at": NOW, "confirmed_at": NOW}
    running = [runs(f"r{number}", a_lease(f"hosts-{number}", cores=4, **lease)) for number in (1, 2)]
    newcomers = [waits(f"r{number}", "A", resources={"cpus": 3}) for number in (3, 4)]
    view = View([quota_host(1), quota_host(2), *running, *newcomers, an_account("A", 100)])
    limits = [each for each in plan(view, rules, NOW).decisions if isinstance(each, Cores)]
    assert [(each.reservation, each.slot, each.cpus) for each in limits] == [("r3", "hosts-1", 4), ("r4", "hosts-2", 4)]


SHARED = some_rules({"pools": {"linux": {"resources": {"cpus": 4}}}, "scheduler": {"share_cores": True}})


def beside_a_leaving_instance(revoke_by: float) -> View:
    """`r1` gave its elastic instance on linux-1 back, so it gets no other one; `r2` shares the cores with it."""
    components = (a_component(resources={"cpus": 1}), a_component("more", kind="elastic", resources={"cpus": 1}))
    main = a_lease("linux-2", resources={"cpus": 1}, cores=4, confirmed_at=NOW)
    leaving = a_lease(component="more", kind="elastic", state="revoking", resources={"cpus": 1}, cores=2)
    both = {"components": components, "leases": (main, replace(leaving, revoke_by=revoke_by)), "declined": ("more",)}
    beside = a_lease(resources={"cpus": 1}, cores=2, confirmed_at=NOW)
    rows = [
        a_reservation("r1", phase="leased", leased_at=NOW, **both),
        a_reservation("r2", phase="leased", leased_at=NOW, leases=(beside,), resources={"cpus": 1}, sequence=2),
    ]
    return View([a_slot("linux-1"), a_slot("linux-2"), *rows])


def list_limits(found: Plan) -> list[tuple[str, str, float]]:
    return [(each.reservation, each.slot, each.cpus) for each in found.decisions if isinstance(each, Cores)]


def test_the_cores_of_an_elastic_instance_are_shared_as_soon_as_it_ends() -> None:
    found = plan(beside_a_leaving_instance(revoke_by=NOW), SHARED, NOW)
    assert list_limits(found) == [("r2", "linux-1", 4)]


def test_the_end_of_an_instance_changes_limits_that_were_right_until_then() -> None:
    """The second plan of the same rows ends the instance; the first one found that no limit changes."""
    view, cache = beside_a_leaving_instance(revoke_by=NOW + 9), PlanCache()
    assert plan(view, SHARED, NOW, cache).decisions == ()
    assert list_limits(plan(view, SHARED, NOW + 9, cache)) == [("r2", "linux-1", 4)]


def limits_of(*rows: Any) -> list[tuple[str, str, float]]:
    """Return the limits that a plan of these rows sets, on slots with 3 cpus."""
    return list_limits(plan(View(rows), some_rules({"pools": {"linux": {"resources": {"cpus": 3}}}}), NOW))


def test_the_limits_of_one_reservation_stand_in_slot_order() -> None:
    """The first instance gets the last slot, by the labels that they require."""
    slots = [a_slot("linux-1", labels={"zone": "b"}), a_slot("linux-2", labels={"zone": "a"})]
    parts = tuple(a_component(f"in-{zone}", resources={"cpus": 1}, labels={"zone": zone}) for zone in ("a", "b"))
    assert limits_of(*slots, a_reservation("r1", components=parts)) == [("r1", "linux-1", 3), ("r1", "linux-2", 3)]


def test_capacity_that_is_kept_for_a_reservation_that_waits_is_shared_until_then() -> None:
    """The gang waits for linux-2, and its first instance for the third cpu of linux-1."""
    singles = [a_reservation(f"r{number}", resources={"cpus": 1}, sequence=number) for number in (1, 2)]
    parts = (a_component("one", resources={"cpus": 1}), a_component("other", resources={"cpus": 3}))
    gang = a_reservation("r3", components=parts, sequence=3)
    slots = [a_slot("linux-1"), a_slot("linux-2", state="booting")]
    assert limits_of(*slots, *singles, gang) == [("r1", "linux-1", 1.5), ("r2", "linux-1", 1.5)]


def test_leases_on_a_slot_whose_pool_the_rules_no_longer_list_share_its_spare_cores() -> None:
    slot = a_slot("old-1", pool="old", resources={"cpus": 8})
    holder = a_reservation(phase="leased", leases=(a_lease("old-1", resources={"cpus": 2}, cores=3.0),))
    found = plan(View([slot, holder]), some_rules(), NOW)
    assert [(each.slot, each.cpus) for each in found.decisions if isinstance(each, Cores)] == [("old-1", 8)]
