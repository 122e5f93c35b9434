"""A snapshot is the live state as a scenario: played, it gives that state, and the next plan is the same."""

import json
from random import Random
from typing import Any

import pytest

from scheduler.model.decisions import describe_decision
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.reservations import Reservation
from scheduler.model.rules import read_rules
from scheduler.model.run_times import RunTimes, list_classes
from scheduler.model.slots import Slot
from scheduler.model.view import Row, View
from scheduler.policy.plan import plan
from scheduler.simulation.runner import Runner
from scheduler.simulation.scenario import read_scenario
from scheduler.simulation.snapshot import make_snapshot
from tests.builders import NOW, a_component, a_lease, a_reservation, a_slot
from tests.rules.playing import Document, a_pool, play_out
from tests.rules.waits import a_fleet

CONFIG: Document = {
    "scheduler": {"queue": "priority", "confirm_timeout": 60},
    "pools": {
        "linux": a_pool(
            offerings=[{"name": "small", "price": 1, "resources": {"cpus": 4}}],
            default_resources={"cpus": 1},
            ec2={"image": "ami-1", "user_data": "echo ${slot}"},
        ),
        "hosts": {"system": "x86_64-linux", "provider": "static", "resources": {"cpus": 8}, "lease_ttl": 0},
    },
}


def take(rows: list[Row], config: Document = CONFIG, now: float = NOW) -> Document:
    """A snapshot as it is written to a file and read again."""
    made: Document = json.loads(json.dumps(make_snapshot(rows, config, read_rules(config), {"boot": 60}, now)))
    return made


def play_back(document: Document) -> Runner:
    return Runner(read_scenario(document))


def list_rows(player: Runner) -> list[Row]:
    return list(player.cluster.store.read_rows())


def decide(rows: list[Row], config: Document, now: float) -> tuple[list[Any], list[tuple[str, str]]]:
    """The decisions of the next plan, and the code of each wait."""
    outcome = plan(View(rows), read_rules(config), now)
    return [describe_decision(each) for each in outcome.decisions], [
        (each.reservation, each.code) for each in outcome.waiting
    ]


def a_live_state() -> list[Row]:
    """Slots in every state, hosts, leases, reservations in several phases, back-offs and a learned quota."""
    given: dict[str, Any] = {"offering": "small", "market": "spot", "price": 1.0, "resources": {"cpus": 4}}
    slots: list[Row] = [
        a_slot("linux-1", state="ready", idle_since=None, uses=2, unconfirmed=1, **given),
        a_slot("linux-2", state="booting", since=NOW - 30, **given),
        a_slot(
            "linux-3",
            state="draining",
            drain_reason="requested",
            interrupted_at=NOW - 5,
            interrupted_by=NOW + 60,
            **given,
        ),
        Slot(id="linux-4", pool="linux", state="error", error="misconfigured", since=NOW - 10),
        a_slot(
            "hosts-a", machine="m-1", labels={"disk": "ssd"}, resources={"cpus": 8}, cordoned=True, last_seen=NOW - 100
        ),
        a_slot("hosts-b", machine="m-2", resources={"cpus": 8}, last_seen=NOW - 181, failed_probes=2),
        Slot(id="hosts-c", pool="hosts", machine="m-3", since=NOW - 1),
    ]
    lived: dict[str, Any] = {"phase": "leased", "leased_at": NOW - 50, "token": 3, "sequence": 1}
    on_host = a_lease("hosts-b", resources={"cpus": 1})
    rows = [
        a_reservation("r1", **lived, confirmed_at=NOW - 40, leases=(a_lease("linux-1", resources={"cpus": 3}),)),
        a_reservation("r2", **lived, unconfirmed=2, expires_at=NOW + 90, leases=(on_host,)),
        a_reservation(
            "r3",
            phase="revoking",
            revoke_reason="slot_interrupted",
            revoke_by=NOW + 40,
            interruptions=1,
            sequence=2,
            leases=(a_lease("linux-3", resources={"cpus": 1}),),
        ),
        a_reservation("r4", sequence=3, created_at=NOW - 99, priority=0, resources={"cpus": 2}, declined=("linux-1",)),
        a_reservation("r5", sequence=4, suspended=True, labels={"disk": "ssd"}, ttl=30, expires_at=NOW + 12),
        a_reservation(
            "r6", sequence=5, phase="failed", reason="slot_gone", restarts=1, restarted_at=NOW - 4, failed_at=NOW - 2,
            component_restarts={"main": 1},
            restart_policy="on_failure", finished_at=NOW - 2,
        ),
        a_reservation("r7", sequence=6, components=(a_component("node", count=2, resources={"cpus": 4}),)),
        a_reservation("over", sequence=7, phase="released"),
    ]  # fmt: skip
    holds: list[Row] = [
        a_hold("linux", "quota", "spot", active=2),
        a_hold("linux", "throttled", delay=4.75),
        a_hold("*", "auth"),
        a_hold("linux", "unhealthy", "linux-9 timed out", id=hold_id("linux", "unhealthy"), streak=2),
    ]  # fmt: skip
    return [*slots, *rows, *holds]


def a_hold(pool: str, kind: Any, subject: str = "", **fields: Any) -> Hold:
    fields = {"id": hold_id(pool, kind, subject), "refused_at": NOW - 10, "until": NOW + 50, **fields}
    return Hold(pool=pool, kind=kind, subject=subject, **fields)


def test_a_snapshot_of_its_own_play_is_the_same() -> None:
    first = take(a_live_state())
    player = play_back(first)
    assert take(list_rows(player), first["config"], 0) == first


def test_it_has_the_run_times_of_the_classes_of_its_reservations() -> None:
    row = a_reservation(sequence=1, account="ci", principal="ann", tags={"job": "build"}, resources={"cpus": 5})
    known = [
        RunTimes(id=name, seconds=(float(number), 60.5), ratios=(0.5,) * (number % 2))
        for number, name in enumerate(list_classes(row.request, "ann"))
    ]
    document = take([row, *known, RunTimes(id='["other",null]', seconds=(1.0,))])
    assert document["run_times"][0] == {
        "account": "ci",
        "principal": "ann",
        "job": "build",
        "system": "x86_64-linux",
        "instances": 1,
        "cpus": 4,
        "seconds": [0.0, 60.5],
    }
    assert document["run_times"][4] == {"seconds": [4.0, 60.5]}
    player = play_back(document)
    kept = {each.id: (each.seconds, each.ratios) for each in player.cluster.store.find_run_times()}
    assert kept == {each.id: (each.seconds, each.ratios) for each in known}
    (again,) = player.cluster.store.find_reservations()
    assert list_classes(again.request, again.principal) == list_classes(row.request, row.principal)
    assert take(list_rows(player), document["config"], 0) == document


def test_the_next_plan_is_that_of_the_live_state() -> None:
    live = a_live_state()
    document = take(live)
    decided = decide(live, CONFIG, NOW)
    assert decided == decide(list_rows(play_back(document)), document["config"], 0)
    assert (len(decided[0]), len(decided[1])) == (3, 3)


@pytest.mark.parametrize("seed", range(40))
def test_generated_fleets_continue_from_a_snapshot_as_they_would_without(seed: int) -> None:
    fleet = a_fleet(Random(seed))
    player = play_back(fleet)
    list(player.play())
    rows, now = list_rows(player), player.cluster.event_queue.now
    document = take(rows, fleet["config"], now)
    again = play_back(document)
    assert decide(list_rows(again), document["config"], 0) == decide(rows, fleet["config"], now)
    assert take(list_rows(again), document["config"], 0) == document


def test_a_snapshot_contains_no_user_data_ended_reservations_or_untouched_slots() -> None:
    document = take(a_live_state())
    assert "user_data" not in json.dumps(document)
    assert "over" not in [each["id"] for each in document["reservations"]]
    assert "linux-5" not in [each["id"] for each in document["slots"]]


def test_a_snapshot_can_be_played_with_a_changed_timeline() -> None:
    """With one more host, the reservation that waited for two of them is served."""
    waiting: list[Row] = [
        a_slot("hosts-a", machine="m-1", resources={"cpus": 8}),
        a_reservation("r1", components=(a_component(count=2, resources={"cpus": 5}),), pool="hosts", system=None),
    ]
    document = take(waiting)
    assert play_out(document).phases == {"r1": "pending"}
    more = {"at": 1, "slot": {"id": "hosts-z", "pool": "hosts", "resources": {"cpus": 8}}}
    assert play_out({**document, "timeline": [*document["timeline"], more]}).phases == {"r1": "leased"}


GONE: dict[str, list[Document]] = {
    # the pool's present offerings, while a machine of the offering that was `small` still runs
    "another one": [{"name": "large", "price": 2, "resources": {"cpus": 8}}],
    "another price": [{"name": "small", "price": 7, "resources": {"cpus": 8}}],
    "the same name in another market": [
        {"name": "small", "price": 1, "market": market, "resources": {"cpus": 4}} for market in ("spot", "on-demand")
    ],
}


@pytest.mark.parametrize("name", GONE)
def test_a_machine_is_described_as_it_was_launched_whatever_became_of_its_offering(name: str) -> None:
    """Otherwise the file would be refused, although a draining machine may run for hours."""
    config = {"pools": {"linux": a_pool(offerings=GONE[name])}}
    live: list[Row] = [
        a_slot("linux-1", offering="small", market="spot", price=1.0, resources={"cpus": 4}),
        a_reservation("r1", phase="leased", token=1, leases=(a_lease("linux-1", resources={"cpus": 1}),)),
    ]
    player = play_back(take(live, config))
    [slot] = [each for each in list_rows(player) if isinstance(each, Slot) and each.id == "linux-1"]
    assert (slot.offering, slot.market, slot.price) == ("small", "spot", 1.0)
    assert decide(list_rows(player), config, 0) == decide(live, config, NOW)


def test_rows_are_written_by_their_types() -> None:
    kinds = {type(each) for each in a_live_state()}
    assert kinds == {Slot, Reservation, Hold}
