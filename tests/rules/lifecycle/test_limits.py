"""Limits: an account may end leases when they have lasted for the `max_runtime` of their reservation."""

from typing import Any

import pytest

from scheduler.model.accounts import Account
from scheduler.model.decisions import Expire
from scheduler.model.view import View
from scheduler.policy.plan import plan
from tests.builders import NOW, a_component, a_lease, a_reservation, some_rules
from tests.builders import a_slot as a_row
from tests.rules.playing import Cases, Document, a_scenario, a_slot, act, notice, play_out, submit, tick, ticks

TWO = [{"name": "w", "count": 2}]
STRETCHING = [{"name": "main"}, {"name": "e", "kind": "elastic", "count": 2}]


def limited(*timeline: Document, grace: float = 30, most: float = 60, **parts: Any) -> Document:
    """r1 of the account `a`, which enforces its limit, is submitted at 0. It has linux-1 from the first tick on."""
    fields = {"account": "a", "max_runtime": most, **parts.pop("fields", {})}
    rich = parts.pop("rich", [])
    scheduler = {"preemption_grace": grace, **parts.pop("scheduler", {})}
    parts = {"slots": [a_slot("linux-1")], "pool": {"max_slots": 1, **parts.pop("pool", {})}, **parts}
    document = a_scenario(submit(0, "r1", **fields), *timeline, scheduler=scheduler, **parts)
    document["config"]["accounts"] = {"a": {"enforce_max_runtime": True}, "b": {}, "rich": {"balance": rich}}
    return document


def enforce(at: float, value: bool) -> Document:
    return act(at, "account", {"id": "a", "enforce_max_runtime": value})


CASES: Cases = {
    # counted from the lease, not from the submission; >= as at expiry
    "with a grace": (
        limited(*ticks(10, 69.9, 70, 99.9, 100, 101)),
        [["assign r1 linux-1"], [], ["expire r1 limit"], [], ["expire r1 limit"], []],
    ),
    "without a grace the slot is given to others in the same tick": (
        limited(submit(1, "r2"), *ticks(1, 60.9, 61), grace=0),
        [
            ["assign r1 linux-1", "r2 waits at_max_slots"],
            ["r2 waits at_max_slots"],
            ["expire r1 limit", "assign r2 linux-1"],
        ],
    ),
    "with a grace the slot is given to others at its end": (
        limited(submit(1, "r2"), *ticks(1, 61, 90, 91)),
        [
            ["assign r1 linux-1", "r2 waits at_max_slots"],
            ["expire r1 limit", "r2 waits at_max_slots"],
            ["r2 waits at_max_slots"],
            ["expire r1 limit", "assign r2 linux-1"],
        ],
    ),
    "no machine is launched for what is at its limit": (
        limited(*ticks(0, 60, 61), pool={"max_slots": 4}),
        [["assign r1 linux-1"], ["expire r1 limit"], []],
    ),
    "an account that does not enforce it": (
        limited(*ticks(0, 60, 99), fields={"account": "b"}),
        [["assign r1 linux-1"], [], []],
    ),
    "an account that does not exist": (
        limited(*ticks(0, 60, 99), fields={"account": "c"}),
        [["assign r1 linux-1"], [], []],
    ),
    "without an account": (limited(*ticks(0, 60, 99), fields={"account": None}), [["assign r1 linux-1"], [], []]),
    "without a max_runtime": (
        limited(*ticks(0, 60, 99), fields={"max_runtime": None, "expected_runtime": 9}),
        [["assign r1 linux-1"], [], []],
    ),
    "a renewal moves the expiry, and not the limit": (
        limited(tick(0), act(50, "renew", "r1"), *ticks(59, 60), grace=0, pool={"lease_ttl": 55}),
        [["assign r1 linux-1"], [], ["expire r1 limit"]],
    ),
    "the ttl is over first": (limited(*ticks(0, 55), fields={"ttl": 55}), [["assign r1 linux-1"], ["expire r1 ttl"]]),
    "both at once": (limited(*ticks(0, 60), fields={"ttl": 60}), [["assign r1 linux-1"], ["expire r1 ttl"]]),
    "the ttl is over during the grace": (
        limited(*ticks(0, 60, 70), fields={"ttl": 70}),
        [["assign r1 linux-1"], ["expire r1 limit"], ["expire r1 ttl"]],
    ),
    # the flag counts as it is at each tick
    "enforced while the lease runs": (
        limited(enforce(0, False), *ticks(0, 70), enforce(80, True), *ticks(80, 110)),
        [["assign r1 linux-1"], [], ["expire r1 limit"], ["expire r1 limit"]],
    ),
    "no longer enforced before the limit": (
        limited(tick(0), enforce(30, False), *ticks(60, 99)),
        [["assign r1 linux-1"], [], []],
    ),
    "no longer enforced during the grace: the revocation stays": (
        limited(*ticks(0, 60), enforce(70, False), *ticks(70, 90)),
        [["assign r1 linux-1"], ["expire r1 limit"], [], ["expire r1 limit"]],
    ),
    "no longer enforced between the plan and its commit": (
        limited(tick(0), tick(60, enforce(60, False)), tick(90)),
        [["assign r1 linux-1"], ["expire r1 limit (skipped: its account does not enforce max_runtime any more)"], []],
    ),
    "released between the plan and its commit": (
        limited(tick(0), tick(60, act(60, "release", "r1"))),
        [["assign r1 linux-1"], ["expire r1 limit (skipped: the reservation is released already)"]],
    ),
    "a deleted account enforces nothing": (
        limited(tick(0), act(30, "forget_account", "a"), *ticks(60, 99)),
        [["assign r1 linux-1"], [], []],
    ),
    "an account that is created again has no earlier reservations": (
        limited(tick(0), act(30, "forget_account", "a"), enforce(40, True), *ticks(60, 99)),
        [["assign r1 linux-1"], [], []],
    ),
    "a gang ends as a whole": (
        limited(
            *ticks(0, 60, 90),
            fields={"components": TWO},
            slots=[a_slot("linux-1"), a_slot("linux-2")],
            pool={"max_slots": 2},
        ),
        [["assign r1 linux-1 linux-2"], ["expire r1 limit"], ["expire r1 limit"]],
    ),
    # counted from the essential leases on
    "elastic instances end with the others": (
        limited(
            *ticks(0, 30),
            act(30, "uncordon", "linux-3"),
            *ticks(30, 60, 90),
            fields={"components": STRETCHING},
            slots=[a_slot("linux-1"), a_slot("linux-2"), a_slot("linux-3", cordoned=True)],
            pool={"max_slots": 3},
        ),
        [
            ["assign r1 linux-1", "grant r1 e.0 linux-2 room"],
            [],
            ["grant r1 e.1 linux-3 room"],
            ["expire r1 limit"],
            ["expire r1 limit"],
        ],
    ),
    # what ends the grace earlier
    "the machine is lost during the grace": (
        limited(*ticks(0, 60), act(70, "lose", "linux-1"), tick(70)),
        [["assign r1 linux-1"], ["expire r1 limit"], ["expire r1 limit"]],
    ),
    "no grace lasts longer than a machine": (
        limited(*ticks(0, 60), notice(61, deadline=9), *ticks(61, 69, 70)),
        [
            ["assign r1 linux-1"],
            ["expire r1 limit"],
            ["expire r1 limit", "drain linux-1 interrupted"],
            [],
            ["expire r1 limit"],
        ],
    ),
    "a notice comes at the limit": (
        limited(tick(0), notice(60, deadline=9), *ticks(60, 69), pool={"max_slots": 2}),
        [["assign r1 linux-1"], ["expire r1 limit", "drain linux-1 interrupted"], ["expire r1 limit"]],
    ),
    "a drain ends during the grace": (
        limited(tick(0), act(40, "drain", "linux-1"), *ticks(40, 60, 65), pool={"drain_timeout": 25}),
        [["assign r1 linux-1"], [], ["expire r1 limit"], ["expire r1 limit", "terminate linux-1 timeout"]],
    ),
    "a drain ends at the limit": (
        limited(tick(0), act(35, "drain", "linux-1"), *ticks(35, 60), pool={"drain_timeout": 25}),
        [["assign r1 linux-1"], [], ["expire r1 limit", "expire r1 limit", "terminate linux-1 timeout"]],
    ),
    "the drain of the slot of an elastic instance ends at the limit": (
        limited(
            tick(0),
            act(35, "drain", "linux-2"),
            *ticks(35, 60, 90),
            fields={"components": [{"name": "main"}, {"name": "e", "kind": "elastic"}]},
            slots=[a_slot("linux-1"), a_slot("linux-2")],
            pool={"max_slots": 2, "drain_timeout": 25},
        ),
        [
            ["assign r1 linux-1", "grant r1 e linux-2 room"],
            [],
            ["expire r1 limit", "terminate linux-2 timeout"],
            ["expire r1 limit"],
        ],
    ),
    # a lease that is being revoked already has its deadline; the next one counts from its own begin
    "interrupted before its limit": (
        limited(tick(0), notice(50, deadline=20), *ticks(50, 60, 70, 129, 130), pool={"max_slots": 2}, grace=0),
        [
            ["assign r1 linux-1"],
            ["drain linux-1 interrupted", "requeue r1 slot_interrupted", "launch linux-2 demand"],
            [],
            ["requeue r1 slot_interrupted", "assign r1 linux-2"],
            [],
            ["expire r1 limit"],
        ],
    ),
    "of the account of a system with a grace of its own": (
        limited(*ticks(0, 60, 65), scheduler={"system": {"x86_64-linux": {"preemption_grace": 5}}}),
        [["assign r1 linux-1"], ["expire r1 limit"], ["expire r1 limit"]],
    ),
    "what is at its limit is not preempted in the same tick": (
        limited(tick(0), submit(60, "r2", account="rich"), *ticks(60, 61, 90), scheduler={"queue": "quota"}, rich=[50]),
        [
            ["assign r1 linux-1 at 5"],
            ["expire r1 limit", "r2 waits at_max_slots"],
            ["r2 waits at_max_slots"],
            ["expire r1 limit", "assign r2 linux-1 at 0"],
        ],
    ),
    "under quota, where it pays until its end": (
        limited(submit(1, "r2", account="b"), *ticks(1, 61, 91), scheduler={"queue": "quota"}),
        [
            ["assign r1 linux-1 at 5", "r2 waits at_max_slots"],
            ["expire r1 limit", "r2 waits at_max_slots"],
            ["expire r1 limit", "assign r2 linux-1 at 5"],
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_leases_end_at_the_max_runtime_that_their_account_enforces(name: str) -> None:
    document, expected = CASES[name]
    assert play_out(document).ticks == expected


@pytest.mark.parametrize("grace", [0, 30])
def test_a_reservation_at_its_limit_is_expired_with_the_reason_limit_and_never_restarts(grace: float) -> None:
    document = limited(grace=grace, fields={"restart_policy": "on_failure"}, kicks=True, wakes=True, until=200)
    played = play_out(document)
    assert played.decisions[1:] == [f"{at} expire r1 limit" for at in ([60] if grace == 0 else [60, 90])]
    row = played.reservation("r1")
    assert (row["phase"], row["reason"], row["finished_at"]) == ("expired", "limit", 60 + grace)


WORDS: dict[str, tuple[Document, str, str | None]] = {
    "release": (act(70, "release", "r1"), "released", None),
    "cancel": (act(70, "cancel", "r1"), "cancelled", None),
    "surrender": (act(70, "surrender", {"reservation": "r1"}), "expired", "limit"),
    "suspend": (act(70, "suspend", "r1"), "expired", "limit"),
    "fail": (act(70, "fail", {"reservation": "r1"}), "expired", "limit"),
    "fail of a component": (act(70, "fail", {"reservation": "r1", "component": "main"}), "expired", "limit"),
    "another one runs there": (act(70, "confirm", {"reservation": "r2", "slot": "linux-1"}), "expired", "limit"),
    "absent": (act(70, "absent", "r1"), "released", "absent"),
}


@pytest.mark.parametrize("word", WORDS)
def test_what_a_holder_reports_during_the_grace_brings_the_work_back_in_no_case(word: str) -> None:
    action, phase, reason = WORDS[word]
    document = limited(
        *ticks(0, 60), submit(60, "r2"), action, *ticks(70, 90, 99), fields={"restart_policy": "on_failure"}
    )
    played = play_out(document)
    row = played.reservation("r1")
    assert (row["phase"], row["reason"], row["restarts"]) == (phase, reason, 0)


def test_a_simulated_holder_gives_its_leases_back_at_the_limit() -> None:
    played = play_out(limited(fields={"runtime": 500}, kicks=True, wakes=True, until=999))
    assert played.reservation("r1")["finished_at"] == 60


def test_the_ticks_come_at_the_limit_and_at_the_end_of_the_grace() -> None:
    assert play_out(limited(tick(7), wakes=True, until=999, pool={"min_slots": 1})).tick_times == [7, 67, 97]


def test_a_limit_that_no_account_enforces_causes_no_wake_up() -> None:
    document = limited(tick(7), fields={"account": "b"}, wakes=True, until=999, pool={"min_slots": 1})
    assert play_out(document).tick_times == [7]


@pytest.mark.parametrize(("seconds", "revoke_by"), [(40, NOW + 30), (9, NOW + 9), (0, None), (-1, None)])
def test_the_grace_at_a_limit_ends_with_the_first_machine_that_ec2_takes_back(
    seconds: float, revoke_by: float | None
) -> None:
    """Here the machine of an elastic instance: a reservation whose essential instance is interrupted is revoked."""
    parts = (a_component(), a_component("e", kind="elastic"))
    leases = (a_lease("linux-1"), a_lease("linux-2", component="e", kind="elastic"))
    fields: dict[str, Any] = {"phase": "leased", "leased_at": NOW - 60, "confirmed_at": NOW, "leases": leases}
    holder = a_reservation(sequence=1, account="a", max_runtime=60.0, components=parts, **fields)
    leaving = a_row("linux-2", interrupted_at=NOW - 9, interrupted_by=NOW + seconds)
    view = View([a_row("linux-1"), leaving, holder, Account(id="a", enforce_max_runtime=True)])
    found = [each for each in plan(view, some_rules(), NOW).decisions if isinstance(each, Expire)]
    assert found == [Expire(reservation="r1", reason="limit", revoke_by=revoke_by)]
