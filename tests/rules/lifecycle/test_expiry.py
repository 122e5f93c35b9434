"""Expiry: how long a reservation lasts, and what moves its expiry."""

import pytest

from tests.rules.playing import (
    Document,
    a_holder,
    a_pool,
    a_scenario,
    a_slot,
    act,
    play_out,
    reported,
    submit,
    tick,
    ticks,
)

LEASED_AT_5 = [submit(0, "r1"), tick(5)]
ONE_SLOT = [a_slot("linux-1")]

TTLS: dict[str, tuple[Document, float | None]] = {
    # the reservation's own ttl, from created_at
    "own, pending": (a_scenario(submit(3, "r1", ttl=10), pool={"max_slots": 0}), 13),
    # moved by the assignment
    "own, leased": (a_scenario(submit(3, "r1", ttl=10), tick(5), slots=ONE_SLOT), 15),
    "own as a text": (a_scenario(submit(3, "r1", ttl="2m"), pool={"max_slots": 0}), 123),
    # own 0 = never, whatever the pool has
    "own 0, pending": (a_scenario(submit(0, "r1", ttl=0), pool={"reservation_ttl": 7}), None),
    "own 0, leased": (
        a_scenario(submit(0, "r1", ttl=0), tick(5), pool={"reservation_ttl": 7, "lease_ttl": 9}, slots=ONE_SLOT),
        None,
    ),
    "the pool's, pending": (a_scenario(submit(3, "r1"), pool={"reservation_ttl": 7}), 10),
    "the pool's, leased": (a_scenario(*LEASED_AT_5, pool={"reservation_ttl": 7, "lease_ttl": 9}, slots=ONE_SLOT), 12),
    "lease_ttl, pending": (a_scenario(submit(3, "r1"), pool={"lease_ttl": 9}), None),
    "lease_ttl, leased": (a_scenario(*LEASED_AT_5, pool={"lease_ttl": 9}, slots=ONE_SLOT), 14),
    "own ttl before all others": (
        a_scenario(submit(0, "r1", ttl=100), tick(5), pool={"reservation_ttl": 7, "lease_ttl": 9}, slots=ONE_SLOT),
        105,
    ),
    "no ttl at all": (a_scenario(*LEASED_AT_5, slots=ONE_SLOT), None),
    # of the first pool in the configuration that serves its system, not of the pool where it is
    "the first pool of its system": (
        a_scenario(
            *LEASED_AT_5,
            pools={"b": a_pool(max_slots=0, lease_ttl=9), "a": a_pool(lease_ttl=90)},
            slots=[a_slot("a-1")],
        ),
        14,
    ),
    "the pool that it names": (
        a_scenario(
            {"at": 0, "submit": {"id": "r1", "pool": "a"}},
            tick(5),
            pools={"b": a_pool(lease_ttl=9), "a": a_pool(lease_ttl=90)},
            slots=[a_slot("a-1")],
        ),
        95,
    ),
    # renew: now + ttl, pending or leased
    "renewed while pending": (a_scenario(submit(0, "r1", ttl=10), act(6, "renew", "r1"), pool={"max_slots": 0}), 16),
    "renewed while leased": (
        a_scenario(*LEASED_AT_5, act(8, "renew", "r1"), pool={"lease_ttl": 9}, slots=ONE_SLOT),
        17,
    ),
    "renewed while pending without a ttl": (
        a_scenario(submit(0, "r1"), act(6, "renew", "r1"), pool={"lease_ttl": 9, "max_slots": 0}),
        None,
    ),
    # a return to pending: now + ttl, or none if only lease_ttl had set the expiry
    "returned, own": (
        a_scenario(
            submit(0, "r1", ttl=100),
            tick(5),
            act(6, "interrupt", {"slot": "linux-1", "deadline": 60}),
            tick(7),
            scheduler={"interruption_grace": 0},
            pool={"max_slots": 1},
            slots=ONE_SLOT,
        ),
        107,
    ),
    "returned, lease_ttl": (
        a_scenario(
            submit(0, "r1"),
            tick(5),
            act(6, "interrupt", {"slot": "linux-1", "deadline": 60}),
            tick(7),
            scheduler={"interruption_grace": 0},
            pool={"max_slots": 1, "lease_ttl": 50},
            slots=ONE_SLOT,
        ),
        None,
    ),
    "restarted, the pool's": (
        a_scenario(
            submit(0, "r1", restart_policy="on_failure"),
            tick(5),
            act(6, "fail", {"reservation": "r1"}),
            act(6, "cordon", "linux-1"),
            tick(7),
            pool={"max_slots": 1, "reservation_ttl": 50},
            slots=ONE_SLOT,
        ),
        57,
    ),
    # changed rules count from the next renewal on
    "changed rules": (
        a_scenario(
            *LEASED_AT_5,
            act(6, "rules", {"pools": {"linux": {"lease_ttl": 90}}}),
            act(8, "renew", "r1"),
            pool={"lease_ttl": 9},
            slots=ONE_SLOT,
        ),
        98,
    ),
}


@pytest.mark.parametrize("name", TTLS)
def test_the_expiry_follows_the_first_ttl_that_is_set(name: str) -> None:
    document, expected = TTLS[name]
    assert play_out(document).reservation("r1")["expires_at"] == expected


@pytest.mark.parametrize(("at", "expected"), [(9.999, []), (10, ["expire r1 ttl"]), (500, ["expire r1 ttl"])])
def test_a_leased_reservation_expires_when_now_is_its_expiry_or_later(at: float, expected: list[str]) -> None:
    played = play_out(a_scenario(submit(0, "r1"), *ticks(0, at), pool={"lease_ttl": 10}, slots=ONE_SLOT))
    assert played.ticks[1] == expected


def test_the_slot_of_an_expired_lease_is_assigned_again_in_the_same_tick() -> None:
    played = play_out(
        a_scenario(submit(0, "r1", ttl=10), submit(0, "r2"), *ticks(0, 10), pool={"max_slots": 1}, slots=ONE_SLOT)
    )
    assert played.ticks[1] == ["expire r1 ttl", "assign r2 linux-1"]
    assert played.slots == {"linux-1": "ready r2"}
    assert played.phases == {"r1": "expired", "r2": "leased"}


def test_expired_reservations_are_reported_in_order_of_submission() -> None:
    assert reported(submit(0, "r2", ttl=10), submit(1, "r1", ttl=1), tick(20), pool={"max_slots": 0}) == [
        ["expire r2 ttl", "expire r1 ttl"]
    ]


def test_a_revoking_reservation_expires_too() -> None:
    assert reported(
        act(0, "interrupt", {"slot": "linux-1", "deadline": 100}),
        *ticks(0, 10),
        slots=[a_slot("linux-1", "ready", "r1")],
        reservations=[a_holder("r1", ttl=10)],
        pool={"max_slots": 1},
    ) == [["drain linux-1 interrupted", "requeue r1 slot_interrupted"], ["expire r1 ttl", "terminate linux-1 drained"]]


def test_a_reservation_that_has_ended_does_not_expire() -> None:
    """A released reservation does not, and a failed one that waits for its restart does not."""
    assert reported(
        submit(0, "r1", "r2", ttl=10, restart_policy="on_failure"),
        act(1, "release", "r1"),
        act(1, "fail", {"reservation": "r2"}),
        tick(20),
        slots=ONE_SLOT,
    ) == [["restart r2 restart_due", "assign r2 linux-1"]]


def test_a_renewal_between_plan_and_commit_prevents_the_expiry() -> None:
    assert reported(
        submit(0, "r1", ttl=10), tick(0), {"at": 10, "tick": {"between": [{"renew": "r1"}]}}, slots=ONE_SLOT
    )[1] == ["expire r1 ttl (skipped: the reservation was renewed)"]


def test_a_renewal_of_an_expired_reservation_changes_nothing() -> None:
    played = play_out(a_scenario(submit(0, "r1", ttl=10), tick(10), act(11, "renew", "r1"), tick(12)))
    assert played.phases == {"r1": "expired"}
    assert played.ticks[1] == []


def test_a_lease_of_a_slot_record_has_the_lease_ttl_from_the_start() -> None:
    played = play_out(
        a_scenario(
            *ticks(49, 50),
            slots=[a_slot("linux-1", "ready", "r1")],
            reservations=[a_holder("r1")],
            pool={"lease_ttl": 50},
        )
    )
    assert played.ticks == [[], ["expire r1 ttl"]]
