"""Failure and restart, silent hosts: Orchard's rules as far as this tick has them."""

import pytest

from tests.rules.playing import Cases, Document, a_holder, a_scenario, a_slot, act, play_out, submit, tick, ticks

HOSTS = {"hosts": {"system": "x86_64-linux", "provider": "static", "max_leases_per_slot": 100, "lease_ttl": 0}}
AGAIN: Document = {"restart_policy": "on_failure"}


def dies(at: float, name: str = "r1") -> Document:
    return act(at, "fail", {"reservation": name})


CASES: Cases = {
    "never: stays failed": (
        a_scenario(
            submit(0, "r1"),
            tick(0),
            dies(1),
            act(2, "release", "r1"),
            act(2, "renew", "r1"),
            *ticks(3, 99),
            slots=[a_slot("linux-1")],
            pool={"min_slots": 1},
        ),
        [["assign r1 linux-1"], [], []],
    ),
    "on_failure, the first time: at the next tick, and placed in it": (
        a_scenario(submit(0, "r1", **AGAIN), tick(0), dies(10), tick(10), slots=[a_slot("linux-1")]),
        [["assign r1 linux-1"], ["restart r1 restart_due", "assign r1 linux-1"]],
    ),
    "fails again after 20 s: at once": (
        a_scenario(
            submit(0, "r1", **AGAIN), tick(0), dies(10), tick(10), dies(30), tick(30), slots=[a_slot("linux-1")]
        ),
        [["assign r1 linux-1"]] + 2 * [["restart r1 restart_due", "assign r1 linux-1"]],
    ),
    "its priority changes while it waits for its restart: 0 keeps it on hold": (
        a_scenario(
            submit(0, "r1", **AGAIN),
            tick(0),
            dies(10),
            act(10, "priority", {"reservation": "r1", "priority": 0}),
            tick(10),
            act(11, "priority", {"reservation": "r1", "priority": 1}),
            tick(11),
            slots=[a_slot("linux-1")],
            pool={"min_slots": 1},
        ),
        [["assign r1 linux-1"], ["restart r1 restart_due", "r1 waits on_hold"], ["assign r1 linux-1"]],
    ),
    "fails again after 5 s: by the first tick after the delay": (
        a_scenario(
            submit(0, "r1", **AGAIN),
            tick(0),
            dies(10),
            tick(10),
            dies(15),
            *ticks(15, 25, 25.001),
            slots=[a_slot("linux-1")],
            pool={"min_slots": 1},
        ),
        [
            ["assign r1 linux-1"],
            ["restart r1 restart_due", "assign r1 linux-1"],
            [],
            [],
            ["restart r1 restart_due", "assign r1 linux-1"],
        ],
    ),
    "max_restarts": (
        a_scenario(
            submit(0, "r1", **AGAIN),
            tick(0),
            dies(10),
            tick(10),
            dies(30),
            tick(50),
            scheduler={"max_restarts": 1},
            slots=[a_slot("linux-1")],
            pool={"min_slots": 1},
        ),
        [["assign r1 linux-1"], ["restart r1 restart_due", "assign r1 linux-1"], []],
    ),
    "its slot is gone: restarted by the following tick": (
        a_scenario(
            act(0, "lose", "linux-1"),
            *ticks(0, 5),
            slots=[a_slot("linux-1", "ready", "r1"), a_slot("linux-2")],
            reservations=[a_holder("r1", **AGAIN)],
        ),
        [["fail r1 slot_gone"], ["restart r1 restart_due", "assign r1 linux-2"]],
    ),
    "it keeps its position in the queue": (
        a_scenario(
            submit(0, "r1", **AGAIN),
            tick(0),
            submit(1, "r2"),
            dies(2),
            tick(2),
            slots=[a_slot("linux-1")],
            pool={"max_slots": 1},
        ),
        [["assign r1 linux-1"], ["restart r1 restart_due", "assign r1 linux-1", "r2 waits at_max_slots"]],
    ),
    "while it waits for its restart it blocks no other reservation": (
        a_scenario(
            submit(0, "r1", **AGAIN),
            tick(0),
            dies(10),
            tick(10),
            dies(12),
            submit(12, "r2"),
            tick(12),
            slots=[a_slot("linux-1")],
            pool={"max_slots": 1},
        ),
        [["assign r1 linux-1"], ["restart r1 restart_due", "assign r1 linux-1"], ["assign r2 linux-1"]],
    ),
    "a heartbeat that is exactly the timeout old": (
        a_scenario(
            tick(180), pools=HOSTS, slots=[a_slot("hosts-1", "ready", "r1", last_seen=0)], reservations=[a_holder("r1")]
        ),
        [[]],
    ),
    "silent for longer": (
        a_scenario(
            submit(180, "r2"),
            tick(180.001),
            pools=HOSTS,
            slots=[a_slot("hosts-1", "ready", "r1", last_seen=0)],
            reservations=[a_holder("r1")],
        ),
        [["fail r1 slot_offline", "r2 waits no_capacity"]],
    ),
    "decided once": (
        a_scenario(
            *ticks(181, 182, 200),
            pools=HOSTS,
            slots=[a_slot("hosts-1", "ready", "r1", last_seen=0)],
            reservations=[a_holder("r1")],
        ),
        [["fail r1 slot_offline"], [], []],
    ),
    "heard again: used at the next tick, its earlier leases do not come back": (
        a_scenario(
            tick(181),
            act(190, "seen", "hosts-1"),
            submit(190, "r2"),
            tick(190),
            pools=HOSTS,
            slots=[a_slot("hosts-1", "ready", "r1", last_seen=0)],
            reservations=[a_holder("r1")],
        ),
        [["fail r1 slot_offline"], ["assign r2 hosts-1"]],
    ),
    "a heartbeat between plan and commit": (
        a_scenario(
            {"at": 181, "tick": {"between": [{"seen": "hosts-1"}]}},
            tick(182),
            pools=HOSTS,
            slots=[a_slot("hosts-1", "ready", "r1", last_seen=0)],
            reservations=[a_holder("r1")],
        ),
        [["fail r1 slot_offline (skipped: the slots of the reservation are not lost)"], []],
    ),
    "a launched machine does not go offline by silence": (
        a_scenario(tick(9999), slots=[a_slot("linux-1", "ready", "r1", last_seen=0)], reservations=[a_holder("r1")]),
        [[]],
    ),
    "unconfirmed: requeued when its age is the timeout": (
        a_scenario(submit(0, "r1"), *ticks(0, 9, 10), scheduler={"confirm_timeout": 10}, slots=[a_slot("linux-1")]),
        [["assign r1 linux-1"], [], ["requeue r1 unconfirmed", "assign r1 linux-1"]],
    ),
    "confirmed, or renewed, in time": (
        a_scenario(
            submit(0, "r1", "r2"),
            tick(0),
            act(3, "confirm", {"reservation": "r1", "slot": "linux-1"}),
            act(3, "renew", "r2"),
            tick(10),
            scheduler={"confirm_timeout": 10},
            slots=[a_slot("linux-1"), a_slot("linux-2")],
        ),
        [["assign r1 linux-1", "assign r2 linux-2"], []],
    ),
    "confirmed between plan and commit": (
        a_scenario(
            submit(0, "r1"),
            tick(0),
            {"at": 10, "tick": {"between": [{"confirm": {"reservation": "r1", "slot": "linux-1"}}]}},
            scheduler={"confirm_timeout": 10},
            slots=[a_slot("linux-1")],
        ),
        [
            ["assign r1 linux-1"],
            [
                "requeue r1 unconfirmed (skipped: the reservation was confirmed)",
                "assign r1 linux-1 (skipped: the reservation is leased)",
            ],
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_failure_is_reported_and_restarted_by_its_policy(name: str) -> None:
    document, expected = CASES[name]
    assert play_out(document).ticks == expected


def test_a_restart_is_counted_and_keeps_the_creation_time() -> None:
    played = play_out(a_scenario(submit(3, "r1", **AGAIN), tick(3), dies(10), tick(10), slots=[a_slot("linux-1")]))
    found = played.reservation("r1")
    assert (found["restarts"], found["created_at"], found["restarted_at"], found["finished_at"]) == (1, 3, 10, None)


def test_all_leases_of_a_failed_gang_end() -> None:
    gang = {"id": "g", "system": "x86_64-linux", "components": [{"name": "w", "count": 3}]}
    played = play_out(
        a_scenario(
            {"at": 0, "submit": gang},
            tick(0),
            act(1, "lose", "linux-2"),
            submit(1, "r1", "r2"),
            tick(1),
            slots=[a_slot(f"linux-{n}") for n in (1, 2, 3)],
            pool={"max_slots": 3},
        )
    )
    assert played.ticks == [
        ["assign g linux-1 linux-2 linux-3"],
        ["fail g slot_gone", "assign r1 linux-1", "assign r2 linux-3"],
    ]
