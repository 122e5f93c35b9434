"""`wake_at`: a tick is played when something that the last plan waits for falls due, and not otherwise."""

import math

import pytest

from tests.rules.playing import Document, a_holder, a_scenario, a_slot, a_wish, act, play_out, submit, tick

JUST_AFTER = math.nextafter(300, math.inf)

CASES: dict[str, tuple[Document, list[str]]] = {
    "the expiry of a pending reservation": (
        a_scenario(submit(0, "r1", ttl=10), tick(0), pool={"max_slots": 0}),
        ["10 expire r1 ttl"],
    ),
    "the expiry of a lease that this tick gives": (
        a_scenario(submit(0, "r1"), tick(0), pool={"lease_ttl": 10, "min_slots": 1}, slots=[a_slot("linux-1")]),
        ["0 assign r1 linux-1", "10 expire r1 ttl"],
    ),
    "a renewal in time: the tick at the old end finds nothing": (
        a_scenario(
            submit(0, "r1"),
            tick(0),
            act(6, "renew", "r1"),
            pool={"lease_ttl": 10, "min_slots": 1},
            slots=[a_slot("linux-1")],
        ),
        ["0 assign r1 linux-1", "16 expire r1 ttl"],
    ),
    "an unconfirmed lease": (
        a_scenario(
            submit(0, "r1", ttl=15),
            tick(0),
            scheduler={"confirm_timeout": 10},
            pool={"min_slots": 1},
            slots=[a_slot("linux-1")],
            until=29,
        ),
        [
            *("0 assign r1 linux-1", "10 requeue r1 unconfirmed", "10 assign r1 linux-1"),
            *("20 requeue r1 unconfirmed", "20 assign r1 linux-1"),
        ],
    ),
    "the end of a grace period": (
        a_scenario(
            act(0, "interrupt", {"slot": "linux-1", "deadline": 100}),
            tick(0),
            scheduler={"interruption_grace": 30},
            pool={"max_slots": 1},
            slots=[a_slot("linux-1", "ready", "r1")],
            reservations=[a_holder("r1")],
        ),
        [
            *("0 drain linux-1 interrupted", "0 requeue r1 slot_interrupted"),
            *("30 requeue r1 slot_interrupted", "30 terminate linux-1 drained"),
        ],
    ),
    "a restart, the first time": (
        a_scenario(
            act(0, "lose", "linux-1"),
            tick(0),
            slots=[a_slot("linux-1", "ready", "r1"), a_slot("linux-2")],
            reservations=[a_holder("r1", restart_policy="on_failure")],
        ),
        ["0 fail r1 slot_gone", "0 restart r1 restart_due", "0 assign r1 linux-2"],
    ),
    "the end of a launch back-off": (
        a_scenario(
            act(0, "outage", {"pool": "linux", "error": "throttled", "until": 4}),
            submit(0, "r1"),
            tick(0),
            kicks=True,
            until=9,
        ),
        [*(f"{at} launch linux-1 demand" for at in ("0", "1", "3.5", "8.25")), "8.25 assign r1 linux-1"],
    ),
    "the end of a cool-down": (
        a_scenario(
            act(0, "outage", {"pool": "linux", "error": "misconfigured", "until": 4}), submit(0, "r1"), tick(0), tick(1)
        ),
        ["0 launch linux-1 demand", "60 reset linux-1 cooled_down", "60 launch linux-1 demand"],
    ),
    "idle for strictly longer; drained, and terminated by the next tick": (
        a_scenario(tick(0), slots=[a_slot("linux-1")], until=400),
        [f"{JUST_AFTER:g} drain linux-1 idle", f"{JUST_AFTER:g} terminate linux-1 drained"],
    ),
    "idle from the end of a lease that expires": (
        a_scenario(
            tick(0),
            pool={"idle_scale_down": 20},
            slots=[a_slot("linux-1", "ready", "r1", since=-9999)],
            reservations=[a_holder("r1", ttl=10)],
        ),
        ["10 expire r1 ttl", "30 drain linux-1 idle", "30 terminate linux-1 drained"],
    ),
    "a launch that gets no answer": (
        a_scenario(
            submit(0, "r1", ttl=40), tick(0), pool={"launch_timeout": 30, "max_slots": 1}, cloud={"launch": 999}
        ),
        ["0 launch linux-1 demand", "30 terminate linux-1 timeout", "40 expire r1 ttl"],
    ),
    "a termination that takes too long": (
        a_scenario(
            tick(0), slots=[a_slot("linux-1", "terminating")], pool={"terminating_timeout": 20}, cloud={"terminate": 50}
        ),
        ["20 terminate linux-1 timeout", "40 terminate linux-1 timeout"],
    ),
    "a drain that lasts too long": (
        a_scenario(
            act(0, "drain", "linux-1"),
            tick(0),
            pool={"drain_timeout": 25, "max_slots": 1},
            slots=[a_slot("linux-1", "ready", "r1")],
            reservations=[a_holder("r1")],
        ),
        ["25 requeue r1 slot_draining", "25 terminate linux-1 timeout"],
    ),
    "nothing is due": (a_scenario(tick(0), slots=[a_slot("linux-1")], pool={"min_slots": 1}), []),
}


@pytest.mark.parametrize("name", CASES)
def test_work_that_falls_due_is_decided_at_its_instant(name: str) -> None:
    document, expected = CASES[name]
    assert play_out({"until": 200, **document, "wakes": True}).decisions == expected


def test_no_tick_is_played_when_nothing_is_due() -> None:
    document, _ = CASES["nothing is due"]
    assert play_out({**document, "wakes": True, "until": 9999}).tick_times == [0]


def test_a_reservation_behind_a_full_pool_causes_no_wake_up() -> None:
    waiting = a_scenario(submit(0, "r1"), tick(0), pool={"max_slots": 0}, wakes=True, until=9999)
    assert play_out(waiting).tick_times == [0]


@pytest.mark.parametrize(("ttl", "times"), [({}, [0, 10]), ({"ttl": 0}, [0])])
def test_a_lease_that_never_expires_causes_no_wake_up(ttl: Document, times: list[float]) -> None:
    """The `lease_ttl` of the pool holds for requests without a ttl of their own; a ttl of 0 means never."""
    pool = {"lease_ttl": 10, "min_slots": 1}
    assigned = a_scenario(submit(0, "r1", **ttl), tick(0), pool=pool, slots=[a_slot("linux-1")], wakes=True, until=10)
    assert play_out(assigned).tick_times == times


def test_undone_trial_launches_cause_no_wake_up() -> None:
    """A gang of two with one slot left: its first launch is undone, and so is the wait for it."""
    gang = {"id": "g", "system": "x86_64-linux", "components": [{"name": "w", "count": 2}]}
    waiting = a_scenario({"at": 0, "submit": gang}, tick(0), pool={"max_slots": 1}, wakes=True, until=9999)
    assert play_out(waiting).tick_times == [0]


def test_a_reservation_that_may_not_restart_again_causes_no_wake_up() -> None:
    failed = a_scenario(
        act(0, "lose", "linux-1"),
        tick(0),
        scheduler={"max_restarts": 1},
        slots=[a_slot("linux-1", "ready", "r1")],
        reservations=[a_holder("r1", restart_policy="on_failure")],
        wakes=True,
        until=99,
    )
    assert play_out(failed).tick_times == [0, 0]


AT_0: dict[str, tuple[Document, str]] = {
    # Records of a time before the start whose limit is over after 0.
    "an idle time": (
        a_scenario(slots=[a_slot("linux-1", idle_since=-900)], pool={"idle_scale_down": 900}),
        "drain linux-1 idle",
    ),
    "the timeout of a silent host": (
        a_scenario(
            slots=[a_slot("linux-1", "ready", "r1", last_seen=-180)],
            reservations=[a_holder("r1")],
            pool={"provider": "static"},
        ),
        "fail r1 slot_offline",
    ),
    "a restart": (
        a_scenario(
            reservations=[a_wish("r1", phase="failed", restart_policy="on_failure", restarted_at=-15)],
            pool={"max_slots": 0},
        ),
        "restart r1 restart_due",
    ),
}


@pytest.mark.parametrize("name", AT_0)
def test_a_limit_may_end_at_the_start_of_the_clock(name: str) -> None:
    """At exactly the limit nothing is due yet, and a tick runs just after it: numbers near 0 are close together."""
    document, expected = AT_0[name]
    played = play_out({**document, "timeline": [tick(0)], "wakes": True, "until": 1})
    first, second = (line for line in played.lines if line.get("tick") in {1, 2})
    assert not first["decisions"]
    assert 0 < second["at"] < 1e-12
    assert played.ticks[1][0] == expected
