"""The contract of `leasehold simulate`: its output, when ticks are played, and that it is always the same."""

import json
import os
import subprocess
import sys
from io import StringIO
from math import inf, nextafter
from pathlib import Path
from typing import Any

import pytest

from scheduler.simulation.runner import play, run_file
from scheduler.simulation.scenario import load_scenario
from tests.rules.playing import Document, a_holder, a_scenario, a_slot, act, play_out, submit, tick, ticks

HERE = Path(__file__).parent
EXAMPLE = HERE / "two_fit_one_launches.json"


def test_the_example_of_the_contract_plays_as_shown() -> None:
    lines = list(play(load_scenario(EXAMPLE)))
    assert lines[:-1] == [
        {"at": 0, "event": "reservation_submitted", "reservation": "r1"},
        {"at": 0, "event": "reservation_submitted", "reservation": "r2"},
        {
            "at": 0,
            "tick": 1,
            "decisions": [
                {"do": "assign", "reservation": "r1", "leases": [{"component": "main", "slot": "linux-1"}]},
                {"do": "launch", "slot": "linux-2", "pool": "linux", "offering": None, "reason": "demand"},
                {"do": "cores", "reservation": "r1", "component": "main", "slot": "linux-1", "cpus": 4},
            ],
            "waiting": [{"reservation": "r2", "code": "booting", "detail": "waits for linux-2 (launching)"}],
        },
        {"at": 0, "event": "reservation_leased", "reservation": "r1"},
        {"at": 0, "event": "slot_launching", "slot": "linux-2"},
        {"at": 0, "event": "slot_booting", "slot": "linux-2"},
        {"at": 60, "event": "slot_binding", "slot": "linux-2"},
        {"at": 65, "event": "slot_ready", "slot": "linux-2"},
        {
            "at": 70,
            "tick": 2,
            "decisions": [{"do": "assign", "reservation": "r2", "leases": [{"component": "main", "slot": "linux-2"}]}],
            "waiting": [],
        },
        {"at": 70, "event": "reservation_leased", "reservation": "r2"},
        {"at": 80, "event": "reservation_released", "reservation": "r1"},
    ]
    state = lines[-1]["state"]
    assert lines[-1]["at"] == 80
    assert [(each["id"], each["state"], each["idle_since"]) for each in state["slots"]] == [
        ("linux-1", "ready", 80),
        ("linux-2", "ready", None),
    ]
    assert state["slots"][1]["leases"] == [
        {"reservation": "r2", "component": "main", "level": 5, "cost": [0, 0, 0, 0, 0]}
    ]
    keys = ("phase", "leases", "restarts", "created_at", "leased_at", "finished_at")
    assert [tuple(each[key] for key in keys) for each in state["reservations"]] == [
        ("released", [], 0, 0, 0, 80),
        ("leased", [{"component": "main", "slot": "linux-2"}], 0, 0, 70, None),
    ]
    assert state["accounts"] == []


def _busy_day() -> Document:
    """A scenario in which nearly everything happens."""
    return a_scenario(
        submit(0, "r1", "r2", "r3", runtime=50, restart_policy="on_failure"),
        tick(0),
        act(20, "interrupt", {"slot": "linux-1", "deadline": 30}),
        submit(25, "r4", "r5", ttl=100),
        act(40, "lose", "linux-2"),
        act(60, "outage", {"pool": "linux", "error": "capacity", "until": 100}),
        act(70, "cordon", "linux-3"),
        submit(80, "r6", labels={"gpu": "yes"}),
        act(120, "uncordon", "linux-3"),
        pool={"max_slots": 5, "target_warm_slots": 1, "idle_scale_down": 40},
        cloud={"launch": 1, "boot": 5, "bind": 1, "terminate": 3},
        tick_every=5,
        kicks=True,
        wakes=True,
        until=400,
    )


def test_the_same_file_gives_the_same_output_byte_for_byte() -> None:
    """Also in other processes, where sets and dicts are hashed differently."""
    here = "\n".join(json.dumps(line) for line in play_out(_busy_day()).lines)
    code = (
        "import json, sys\n"
        "from scheduler.simulation.runner import play\n"
        "from scheduler.simulation.scenario import read_scenario\n"
        "print('\\n'.join(json.dumps(line) for line in play(read_scenario(json.load(sys.stdin)))))"
    )
    for seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps(_busy_day()),
            env={**os.environ, "PYTHONHASHSEED": seed, "COVERAGE_PROCESS_START": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        assert there.stdout.strip() == here


def test_a_reservation_without_runtime_is_held_until_its_release() -> None:
    played = play_out(a_scenario(submit(0, "r1"), *ticks(0, 500), act(600, "release", "r1"), slots=[a_slot("linux-1")]))
    assert played.events == ["0 reservation_submitted r1", "0 reservation_leased r1", "600 reservation_released r1"]


def test_a_simulated_holder_confirms_renews_and_releases_after_its_runtime() -> None:
    played = play_out(
        a_scenario(
            submit(0, "r1", runtime=100, ttl=30),
            tick(0),
            tick_every=10,
            until=200,
            slots=[a_slot("linux-1")],
            scheduler={"confirm_timeout": 5},
        )
    )
    assert played.events == ["0 reservation_submitted r1", "0 reservation_leased r1", "100 reservation_released r1"]
    assert played.reservation("r1")["confirmed_at"] == 0


def test_a_simulated_holder_surrenders_at_once_and_loses_its_work() -> None:
    played = play_out(
        a_scenario(
            submit(0, "r1", runtime=100),
            tick(0),
            act(40, "interrupt", {"slot": "linux-1", "deadline": 120}),
            tick_every=10,
            kicks=True,
            until=300,
            slots=[a_slot("linux-1"), a_slot("linux-2", "ready", "r0")],
            reservations=[a_holder("r0")],
            cloud={"boot": 20},
        )
    )
    assert [event for event in played.events if event.endswith("r1")] == [
        "0 reservation_submitted r1",
        "0 reservation_leased r1",
        "40 reservation_revoking r1",
        "40 reservation_pending r1",
        "60 reservation_leased r1",
        "160 reservation_released r1",
    ]


def test_without_kicks_only_the_ticks_of_the_file_are_played() -> None:
    played = play_out(a_scenario(submit(0, "r1"), *ticks(3, 9), cloud={"boot": 5}))
    assert played.tick_times == [3, 9]


def test_periodic_ticks_begin_at_0_after_that_instants_items() -> None:
    played = play_out(a_scenario(submit(0, "r1"), tick_every=4, until=9, slots=[a_slot("linux-1")]))
    assert played.tick_times == [0, 4, 8]
    assert played.ticks[0] == ["assign r1 linux-1"]


def test_periodic_ticks_do_not_drift() -> None:
    assert play_out(a_scenario(tick_every=0.1, until=100)).tick_times[-1] == 100


@pytest.mark.parametrize(("every", "at"), [(0.1, 0.3), (0.7, 2.1), (1.1, 3.3)])
def test_a_periodic_tick_runs_at_the_multiple_of_a_period_with_decimals_after_the_items_of_that_time(
    every: float, at: float
) -> None:
    """In binary fractions 3 × 0.7 is less than 2.1, and 3 × 0.1 is more than 0.3."""
    played = play_out(a_scenario(submit(at, "r1"), tick_every=every, slots=[a_slot("linux-1")]))
    assert (played.tick_times[-1], played.decisions) == (at, [f"{at:g} assign r1 linux-1"])


def test_the_play_ends_at_until_or_after_the_last_item_whichever_is_later() -> None:
    assert play_out(a_scenario(tick(7), until=3)).lines[-1]["at"] == 7
    assert play_out(a_scenario(tick(7), until=30)).lines[-1]["at"] == 30


KICKS = {
    # changes that request a tick
    "submit": (submit(5, "r9"), [5]),
    "release": (act(5, "release", "r1"), [5]),
    "cancel": (act(5, "cancel", "r1"), [5]),
    "confirm": (act(5, "confirm", {"reservation": "r1", "slot": "linux-1"}), [5]),
    "fail": (act(5, "fail", {"reservation": "r1"}), [5]),
    "priority": (act(5, "priority", {"reservation": "r1", "priority": 4}), [5]),
    "slot": (act(5, "slot", a_slot("linux-2")), [5]),
    "remove": (act(5, "remove", "linux-1"), [5]),
    "interrupt": (act(5, "interrupt", {"slot": "linux-1", "deadline": 100}), [5]),
    "maintain": (act(5, "maintain", {"slot": "linux-1"}), [5]),
    "lose": (act(5, "lose", "linux-1"), [5]),
    "cordon": (act(5, "cordon", "linux-1"), [5]),
    "uncordon": (act(5, "uncordon", "linux-3"), [5]),
    "drain": (act(5, "drain", "linux-1"), [5]),
    "rules": (act(5, "rules", {"pools": {"linux": {"max_slots": 3}}}), [5]),
    # marks of time and outages request none
    "renew": (act(5, "renew", "r1"), []),
    "seen": (act(5, "seen", "linux-1"), []),
    "outage": (act(5, "outage", {"pool": "linux", "error": "quota", "until": 9}), []),
    # actions that change nothing
    "the same id again": (submit(5, "r1"), []),
    "release of an unknown reservation": (act(5, "release", "nobody"), []),
    "cordoned already": (act(5, "cordon", "linux-3"), []),
    "the same priority": (act(5, "priority", {"reservation": "r1", "priority": 1}), []),
    "lose an empty slot": (act(5, "lose", "linux-4"), []),
    "a scheduled change of an empty slot": (act(5, "maintain", {"slot": "linux-4"}), []),
    "the same rules": (act(5, "rules", {"pools": {"linux": {"max_slots": 4}}}), []),
}


@pytest.mark.parametrize("name", KICKS)
def test_with_kicks_a_change_requests_a_tick_and_nothing_else_does(name: str) -> None:
    item, expected = KICKS[name]
    played = play_out(
        a_scenario(
            item,
            kicks=True,
            until=6,
            reservations=[a_holder("r1", ttl=500)],
            slots=[a_slot("linux-1", "ready", "r1"), a_slot("linux-3", "empty", cordoned=True)],
            pool={"min_slots": 0},
        )
    )
    assert sorted(set(played.tick_times)) == expected


def test_many_kicks_of_one_instant_are_one_tick_after_all_its_items() -> None:
    played = play_out(
        a_scenario(submit(0, "r1"), submit(0, "r2"), act(0, "cancel", "r1"), kicks=True, slots=[a_slot("linux-1")])
    )
    assert played.ticks == [["assign r2 linux-1"]]


def test_an_explicit_tick_is_played_where_it_stands_and_clears_the_kicks_before_it() -> None:
    played = play_out(a_scenario(submit(0, "r1"), tick(0), kicks=True, slots=[a_slot("linux-1")]))
    assert played.ticks == [["assign r1 linux-1"]]


def test_a_periodic_and_a_kicked_tick_of_one_instant_are_one() -> None:
    played = play_out(a_scenario(submit(5, "r1"), kicks=True, tick_every=5, until=5, slots=[a_slot("linux-1")]))
    assert played.tick_times == [0, 5]


def test_with_kicks_a_slot_that_turns_ready_gets_its_lease_at_that_very_instant() -> None:
    played = play_out(a_scenario(submit(0, "r1"), kicks=True, until=100, cloud={"launch": 1, "boot": 10, "bind": 2}))
    assert played.decisions == ["0 launch linux-1 demand", "13 assign r1 linux-1"]


def test_delays_of_0_fall_due_right_after_the_commit_and_kicks_play_on_until_nothing_changes() -> None:
    played = play_out(a_scenario(submit(0, "r1"), kicks=True))
    assert played.ticks == [["launch linux-1 demand", "r1 waits booting"], ["assign r1 linux-1"]]


def test_state_changes_come_before_any_action_of_their_instant() -> None:
    played = play_out(a_scenario(submit(0, "r1"), *ticks(0, 10), cloud={"boot": 10}))
    assert played.ticks == [["launch linux-1 demand", "r1 waits booting"], ["assign r1 linux-1"]]


def test_rules_that_never_come_to_rest_are_reported_instead_of_played_without_end() -> None:
    endless = a_scenario(
        act(0, "outage", {"pool": "linux", "error": "capacity", "until": 5}),
        submit(0, "r1"),
        kicks=True,
        pool={"capacity_hold": 0},
    )
    with pytest.raises(Exception, match="rules without an endless sequence of ticks"):
        play_out(endless)


BETWEEN = {
    # events between plan and commit, and the result for the plan
    "released": ([act(0, "release", "r1")], ["assign r1 linux-1 (skipped: the reservation is released)"]),
    "cancelled": ([act(0, "cancel", "r1")], ["assign r1 linux-1 (skipped: the reservation is cancelled)"]),
    "failed": ([act(0, "fail", {"reservation": "r1"})], ["assign r1 linux-1 (skipped: the reservation is failed)"]),
    "on hold": (
        [act(0, "priority", {"reservation": "r1", "priority": 0})],
        ["assign r1 linux-1 (skipped: the reservation is on hold)"],
    ),
    "cordoned": ([act(0, "cordon", "linux-1")], ["assign r1 linux-1 (skipped: linux-1 takes no leases)"]),
    "interrupted": (
        [act(0, "interrupt", {"slot": "linux-1", "deadline": 9})],
        ["assign r1 linux-1 (skipped: linux-1 takes no leases)"],
    ),
    "draining": ([act(0, "drain", "linux-1")], ["assign r1 linux-1 (skipped: linux-1 is draining)"]),
    "lost": ([act(0, "lose", "linux-1")], ["assign r1 linux-1 (skipped: linux-1 is empty)"]),
    "removed": ([act(0, "remove", "linux-1")], ["assign r1 linux-1 (skipped: the slot does not exist any more)"]),
    "taken": (
        [act(0, "slot", a_slot("linux-1", "ready", "r0"))],
        ["assign r1 linux-1 (skipped: linux-1 has its maximum number of leases)"],
    ),
    "smaller": (
        [act(0, "slot", a_slot("linux-1", resources={"cpus": 1}, labels={"disk": "ssd"}))],
        ["assign r1 linux-1 (skipped: linux-1 has too few resources left)"],
    ),
    "other labels": (
        [act(0, "slot", a_slot("linux-1", resources={"cpus": 2}, labels={"disk": "hdd"}))],
        ["assign r1 linux-1 (skipped: linux-1 does not have the required labels)"],
    ),
    "renewed": ([act(0, "renew", "r1")], ["assign r1 linux-1"]),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_a_decision_that_no_longer_holds_at_the_commit_is_skipped_with_its_reason(name: str) -> None:
    between, expected = BETWEEN[name]
    played = play_out(
        a_scenario(
            submit(0, "r1", resources={"cpus": 2}, labels={"disk": "ssd"}),
            {"at": 0, "tick": {"between": [{k: v for k, v in each.items() if k != "at"} for each in between]}},
            slots=[a_slot("linux-1", labels={"disk": "ssd"}, resources={"cpus": 2})],
            reservations=[a_wish_of_another()],
        )
    )
    assert played.ticks == [[*expected, "r0 waits on_hold"]]


def a_wish_of_another() -> dict[str, Any]:
    return {"id": "r0", "system": "x86_64-linux", "priority": 0}


def test_a_skipped_decision_raises_a_kick_and_the_rest_of_the_tick_continues() -> None:
    played = play_out(
        a_scenario(
            submit(0, "r1", "r2"),
            {"at": 0, "tick": {"between": [{"cordon": "linux-1"}]}},
            kicks=True,
            slots=[a_slot("linux-1"), a_slot("linux-2"), a_slot("linux-3")],
        )
    )
    assert played.ticks == [
        ["assign r1 linux-1 (skipped: linux-1 takes no leases)", "assign r2 linux-2"],
        ["assign r1 linux-3"],
    ]


def test_events_between_plan_and_commit_come_before_the_line_of_the_tick() -> None:
    played = play_out(
        a_scenario(submit(0, "r1"), {"at": 0, "tick": {"between": [{"cancel": "r1"}]}}, slots=[a_slot("linux-1")])
    )
    assert [line.get("event") or "tick" for line in played.lines[:-1]] == [
        "reservation_submitted",
        "reservation_cancelled",
        "tick",
    ]


def test_programs_get_the_exact_instant_and_people_a_rounded_one(tmp_path: Path) -> None:
    """An explicit tick at the instant that programs get decides the same."""
    path = tmp_path / "idle.json"
    path.write_text(json.dumps(a_scenario(tick(0), slots=[a_slot("linux-1")], wakes=True, until=400)))
    lines, sentences = StringIO(), StringIO()
    run_file(path, json_lines=True, out=lines)
    run_file(path, json_lines=False, out=sentences)
    at = json.loads(lines.getvalue().splitlines()[1])["at"]
    assert at == nextafter(300, inf)
    assert play_out(a_scenario(tick(at), slots=[a_slot("linux-1")])).decisions == ["300 drain linux-1 idle"]
    assert "       300 s  tick 2\n              drain slot linux-1, reason idle\n" in sentences.getvalue()


RECORDS: dict[str, tuple[Document, str]] = {
    # further keys of a slot record, and the decisions of the tick
    "uses": ({"uses": 5}, "drain linux-1 used_up"),
    "failed probes": ({"failed_probes": 3}, "drain linux-1 unhealthy"),
    "a drain that waits": ({"drain_reason": "requested"}, "drain linux-1 requested"),
    "a notice": ({"interrupted_at": 0, "interrupted_by": 60}, "drain linux-1 interrupted"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_slot_record_has_the_same_effect_at_the_top_and_in_the_timeline(name: str) -> None:
    """Keys about the past count in the timeline too."""
    stated, expected = RECORDS[name]
    record, pool = a_slot("linux-1", **stated), {"max_uses": 5}
    assert play_out(a_scenario(tick(0), slots=[record], pool=pool)).ticks == [[expected]]
    assert play_out(a_scenario(act(0, "slot", record), tick(0), pool=pool)).ticks == [[expected]]
