"""Failure and restart, silent hosts: Orchard's rules as far as this tick has them."""

import pytest

from tests.rules.playing import Cases, Document, a_holder, a_scenario, a_slot, act, play_out, submit, tick, ticks

HOSTS = {"hosts": {"system": "x86_64-linux", "provider": "static", "max_leases_per_slot": 100, "lease_ttl": 0}}
AGAIN: Document = {"restart_policy": "on_failure"}


def dies(at: float, name: str = "r1") -> Document:
    return act(at, "fail", {"reservation": name})


CASES: Cases = {
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
