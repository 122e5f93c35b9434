"""The commit checks each decision again on fresh rows: every reason to skip one, and that it then changes nothing."""

from typing import Any, Final

import msgspec
import pytest

from scheduler.model.accounts import Account
from scheduler.model.decisions import (
    Assign,
    Decision,
    Drain,
    Expire,
    Fail,
    Launch,
    Placement,
    Requeue,
    Reset,
    Restart,
    Terminate,
)
from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.transitions import IllegalMoveError
from scheduler.model.view import Row
from scheduler.operations.tick.commit import commit
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import DeposedError, LeaderTerm
from tests.builders import a_lease, a_reservation, a_slot
from tests.operations.harness import NOW, Harness

CONFIG: dict[str, Any] = {
    "scheduler": {"confirm_timeout": 10, "restart_delay": 15},
    "pools": {
        "linux": {
            "system": "x86_64-linux",
            "max_slots": 1,
            "resources": {"cpus": 4},
            "max_leases_per_slot": 2,
            "drain_timeout": 60,
            "idle_scale_down": 300,
            "boot_timeout": 100,
        },
        "hosts": {"system": "x86_64-linux", "provider": "static", "offline_timeout": 180},
    },
}
SLOT: dict[str, Any] = {"since": NOW - 50, "idle_since": NOW - 400, "last_seen": NOW}
HELD: dict[str, Any] = {"phase": "leased", "leased_at": NOW - 50, "token": 1, "created_at": NOW - 60}


def a_small_lease(slot: str = "linux-1", **changes: Any) -> Any:
    return a_lease(slot, resources={"cpus": 2}, **changes)


def slot(state: Any = "ready", name: str = "linux-1", **changes: Any) -> Slot:
    return a_slot(name, state=state, **SLOT | {"resources": {"cpus": 4}} | changes)


def a_pending(name: str = "r1", **changes: Any) -> Reservation:
    return a_reservation(name, **{"created_at": NOW - 60, "resources": {"cpus": 2}} | changes)


def a_leased(name: str = "r1", **changes: Any) -> Reservation:
    return a_pending(name, **HELD | {"leases": (a_small_lease(),)} | changes)


def write(rows: list[Row], decision: Decision) -> tuple[str | None, bool]:
    """Commit a decision; return the reason why it was skipped, or None, and whether rows changed."""
    reasons, is_change, _ = write_all(rows, [decision])
    return (reasons[0] if reasons else None, is_change)


def write_all(rows: list[Row], decisions: list[Decision]) -> tuple[list[str], bool, Harness]:
    """Commit decisions; return the reasons of the skipped ones, whether rows changed, and the harness."""
    harness = Harness(CONFIG)
    with harness.store.transaction() as transaction:
        reservations = [row for row in rows if isinstance(row, Reservation)]
        stored = transaction.insert_reservations([_as_new(row) for row in reservations])
        transaction.save([_with_version(row, new) for row, new in zip(reservations, stored, strict=True)])
        known = transaction.load_slots([row.id for row in rows if isinstance(row, Slot)])
        transaction.save(
            [
                msgspec.structs.replace(row, version=known[row.id].version if row.id in known else 0)
                for row in rows
                if isinstance(row, Slot)
            ]
        )
        transaction.save([row for row in rows if isinstance(row, Account)])
        leader_term = transaction.take_term("me")
    before = len(harness.events)
    ((skipped, change_set, _),) = commit(
        harness.store, decisions, harness.planned_rules, leader_term, lambda: "launch-x", NOW
    )
    assert (len(harness.events) > before) == bool(change_set.events)
    return [each.reason for each in skipped], change_set.is_change, harness


def _as_new(row: Reservation) -> Reservation:
    return msgspec.structs.replace(row, leases=(), phase="pending", version=0)


def _with_version(row: Reservation, new: Reservation) -> Reservation:
    return msgspec.structs.replace(row, version=new.version, sequence=new.sequence)


EXPIRE = Expire(reservation="r1")
AT_LIMIT = Expire(reservation="r1", reason="limit", revoke_by=NOW + 30)
OVER_LIMIT = Expire(reservation="r1", reason="limit")
GONE = Fail(reservation="r1", reason="slot_gone")
OFFLINE = Fail(reservation="r1", reason="slot_offline")
FAILED = Fail(reservation="r1", reason="slot_interrupted")
REQUEUED = Requeue(reservation="r1", reason="slot_interrupted")
REVOKED = Requeue(reservation="r1", reason="slot_interrupted", revoke_by=NOW + 60)
DRAINED = Requeue(reservation="r1", reason="slot_draining")
UNCONFIRMED = Requeue(reservation="r1", reason="unconfirmed")
RESTART = Restart(reservation="r1")
ASSIGN = Assign(reservation="r1", leases=(Placement("main", "linux-1", 1, {"cpus": 2}),))
GANG = Assign(
    reservation="r1",
    leases=(Placement("main.0", "linux-1", 1, {"cpus": 2}), Placement("main.1", "linux-1", 1, {"cpus": 2})),
)
LAUNCH = Launch(slot="linux-1", pool="linux", offering=None, reason="demand")
IDLE = Drain(slot="linux-1", reason="idle")
INTERRUPTED = Drain(slot="linux-1", reason="interrupted")
TIMEOUT = Terminate(slot="linux-1", reason="timeout")
FREE = Terminate(slot="linux-1", reason="drained")
COOLED = Reset(slot="linux-1", reason="cooled_down")
HOST = Reset(slot="hosts-1", reason="drained")
SPOT: dict[str, Any] = {"interrupted_at": NOW - 1, "interrupted_by": NOW + 100}

STRICT: Final = Account(id="ci", enforce_max_runtime=True)


def a_limited(**changes: Any) -> Reservation:
    """Leased since its `max_runtime` of 50 s; or in its grace period, with the phase `revoking`."""
    reason = "limit" if changes.get("phase") == "revoking" else None
    fields: dict[str, Any] = {"account": "ci", "max_runtime": 50.0, "revoke_reason": reason}
    return a_leased(**fields | changes)


WRITTEN: list[tuple[str, list[Row], Decision]] = [
    ("it has expired", [a_pending(expires_at=NOW)], EXPIRE),
    ("a leased reservation has expired", [slot(), a_leased(expires_at=NOW - 1)], EXPIRE),
    ("at its limit, with a grace", [slot(), STRICT, a_limited()], AT_LIMIT),
    ("at its limit, without a grace", [slot(), STRICT, a_limited()], OVER_LIMIT),
    ("the grace at its limit is over", [slot(), a_limited(phase="revoking", revoke_by=NOW)], OVER_LIMIT),
    ("its slot is lost during the grace", [slot("empty"), a_limited(phase="revoking", revoke_by=NOW + 9)], OVER_LIMIT),
    (
        "its slot has drained for too long during the grace",
        [slot("draining", since=NOW - 60), a_limited(phase="revoking", revoke_by=NOW + 9)],
        OVER_LIMIT,
    ),
    (
        "the grace at its limit is shorter",
        [slot(interrupted_at=NOW, interrupted_by=NOW + 30), a_limited(phase="revoking", revoke_by=NOW + 40)],
        AT_LIMIT,
    ),
    ("its slot has another machine", [slot(epoch=2), a_leased()], GONE),
    ("its slot is empty", [slot("empty"), a_leased()], GONE),
    ("its slot was removed", [a_leased(leases=(a_small_lease("linux-9"),))], GONE),
    (
        "its host is offline",
        [slot(name="hosts-1", last_seen=NOW - 181), a_leased(leases=(a_small_lease("hosts-1"),))],
        OFFLINE,
    ),
    ("its machine was interrupted", [slot(**SPOT), a_leased()], FAILED),
    ("requeued at once", [slot(**SPOT), a_leased()], REQUEUED),
    ("revoked with a grace", [slot(**SPOT), a_leased()], REVOKED),
    ("its grace is over", [slot("draining"), a_leased(phase="revoking", revoke_by=NOW)], REQUEUED),
    (
        "its slot is lost before its grace is over",
        [slot("empty"), a_leased(phase="revoking", revoke_by=NOW + 9)],
        REQUEUED,
    ),
    ("drained for too long", [slot("draining", since=NOW - 60), a_leased()], DRAINED),
    ("never confirmed", [slot(), a_leased(leased_at=NOW - 10)], UNCONFIRMED),
    ("failed for the first time", [a_pending(phase="failed", restart_policy="on_failure")], RESTART),
    ("failed long after its restart", [a_pending(phase="failed", restarted_at=NOW - 16)], RESTART),
    ("capacity on a ready slot", [slot(), a_pending()], ASSIGN),
    ("beside another lease", [slot(), a_pending(), a_leased("r2")], ASSIGN),
    (
        "a lease of an earlier machine does not count",
        [slot(), a_pending(), a_leased("r2", leases=(a_small_lease(epoch=0),) * 1)],
        ASSIGN,
    ),
    ("an empty slot", [slot("empty")], LAUNCH),
    ("idle for too long", [slot()], IDLE),
    ("interrupted", [slot(**SPOT)], INTERRUPTED),
    ("booting for too long", [slot("booting", since=NOW - 100)], TIMEOUT),
    ("draining without leases", [slot("draining")], FREE),
    ("terminating for too long", [slot("terminating", since=NOW - 300)], TIMEOUT),
    ("in error", [slot("error")], COOLED),
    ("a static host without leases", [slot("draining", "hosts-1")], HOST),
]


@pytest.mark.parametrize(("rows", "decision"), [case[1:] for case in WRITTEN], ids=[case[0] for case in WRITTEN])
def test_a_decision_that_still_holds_is_committed(rows: list[Row], decision: Decision) -> None:
    assert write(rows, decision) == (None, True)


LOST: list[tuple[list[Row], Decision, str]] = [
    # the row was deleted
    ([], EXPIRE, "the reservation does not exist any more"),
    ([], ASSIGN, "the reservation does not exist any more"),
    ([], Drain(slot="linux-9", reason="idle"), "the slot does not exist any more"),
    # expire
    ([a_pending(expires_at=NOW + 0.001)], EXPIRE, "the reservation was renewed"),
    ([a_pending()], EXPIRE, "the reservation was renewed"),
    ([a_pending(phase="released", expires_at=NOW)], EXPIRE, "the reservation is released already"),
    # at its limit
    (
        [slot(), STRICT, a_limited(max_runtime=50.001)],
        AT_LIMIT,
        "the leases of the reservation have not lasted for its max_runtime",
    ),
    (
        [slot(), STRICT, a_limited(leased_at=NOW)],
        AT_LIMIT,
        "the leases of the reservation have not lasted for its max_runtime",
    ),
    (
        [STRICT, a_limited(phase="pending", leases=())],
        AT_LIMIT,
        "the leases of the reservation have not lasted for its max_runtime",
    ),
    ([slot(), a_limited()], AT_LIMIT, "its account does not enforce max_runtime any more"),
    ([slot(), Account(id="ci"), a_limited()], OVER_LIMIT, "its account does not enforce max_runtime any more"),
    ([slot(), STRICT, a_limited(phase="released", leases=())], OVER_LIMIT, "the reservation is released already"),
    (
        [slot(), a_limited(phase="revoking", revoke_by=NOW + 9)],
        OVER_LIMIT,
        "the grace period of the holder is not over",
    ),
    ([slot(), a_limited(phase="revoking", revoke_by=NOW + 40)], AT_LIMIT, "the leases are being revoked already"),
    # fail
    ([slot(), a_leased()], GONE, "the slots of the reservation are not lost"),
    ([slot(), a_pending()], GONE, "the reservation is pending"),
    ([slot(), a_leased(phase="failed", leases=())], GONE, "the reservation is failed"),
    (
        [slot(name="hosts-1", last_seen=NOW - 180), a_leased(leases=(a_small_lease("hosts-1"),))],
        OFFLINE,
        "the slots of the reservation are not lost",
    ),
    ([slot(last_seen=NOW - 9999), a_leased()], OFFLINE, "the slots of the reservation are not lost"),
    ([slot(), a_leased()], FAILED, "the slots of the reservation are not lost"),
    # requeue
    ([slot(), a_leased()], REQUEUED, "the slots of the reservation are not lost"),
    ([slot(), a_leased()], REVOKED, "the slots of the reservation are not lost"),
    ([slot(epoch=2, **SPOT), a_leased()], REQUEUED, "the slots of the reservation are not lost"),
    ([slot(**SPOT), a_pending()], REVOKED, "the reservation is pending"),
    ([slot(**SPOT), a_leased(phase="released", leases=())], REQUEUED, "the reservation is released"),
    ([slot(**SPOT), a_leased(phase="revoking", revoke_by=NOW + 9)], REVOKED, "the leases are being revoked already"),
    (
        [slot("draining"), a_leased(phase="revoking", revoke_by=NOW + 9)],
        REQUEUED,
        "the grace period of the holder is not over",
    ),
    ([slot("draining", since=NOW - 59), a_leased()], DRAINED, "the slots of the reservation are not lost"),
    # The rules changed since the plan: this drain waits for its leases.
    (
        [slot("draining", "hosts-1", since=0), a_leased(leases=(a_small_lease("hosts-1"),))],
        DRAINED,
        "the slots of the reservation are not lost",
    ),
    ([slot(), a_leased()], DRAINED, "the slots of the reservation are not lost"),
    ([slot(), a_leased(confirmed_at=NOW - 1)], UNCONFIRMED, "the reservation was confirmed"),
    ([slot(), a_leased(leased_at=NOW - 9)], UNCONFIRMED, "the confirm_timeout is not over"),
    # restart
    ([a_pending()], RESTART, "the reservation is pending"),
    ([a_pending(phase="cancelled")], RESTART, "the reservation is cancelled"),
    (
        [a_pending(phase="failed", restarted_at=NOW - 15)],
        RESTART,
        "the restart_delay since the last restart is not over",
    ),
    # assign: the reservation
    ([slot(), a_leased()], ASSIGN, "the reservation is leased"),
    ([slot(), a_pending(phase="cancelled")], ASSIGN, "the reservation is cancelled"),
    ([slot(), a_pending(priority=0)], ASSIGN, "the reservation is on hold"),
    ([slot(), a_pending(suspended=True)], ASSIGN, "the reservation is on hold"),
    ([slot(), a_pending(expires_at=NOW)], ASSIGN, "the reservation has expired"),
    # assign: the slot
    ([slot("draining"), a_pending()], ASSIGN, "linux-1 is draining"),
    ([slot("booting"), a_pending()], ASSIGN, "linux-1 is booting"),
    ([slot(epoch=2), a_pending()], ASSIGN, "linux-1 has another machine than planned"),
    ([slot(cordoned=True), a_pending()], ASSIGN, "linux-1 takes no leases"),
    ([slot(**SPOT), a_pending()], ASSIGN, "linux-1 takes no leases"),
    ([slot(), a_pending(), a_leased("r2"), a_leased("r3")], ASSIGN, "linux-1 has its maximum number of leases"),
    ([slot(resources={"cpus": 1}), a_pending()], ASSIGN, "linux-1 has too few resources left"),
    (
        [slot(), a_pending(), a_leased("r2", leases=(a_lease(resources={"cpus": 3}),))],
        ASSIGN,
        "linux-1 has too few resources left",
    ),
    ([slot(), a_pending(labels={"disk": "ssd"})], ASSIGN, "linux-1 does not have the required labels"),
    (
        [slot(labels={"disk": "hdd"}), a_pending(labels={"disk": "ssd"})],
        ASSIGN,
        "linux-1 does not have the required labels",
    ),
    ([slot(), a_pending()], GANG, "the rules have changed since the plan"),
    # launch
    ([slot("launching")], LAUNCH, "linux-1 is launching"),
    ([slot()], LAUNCH, "linux-1 is ready"),
    ([slot("empty", cordoned=True)], LAUNCH, "linux-1 is cordoned"),
    ([slot("empty")], msgspec.structs.replace(LAUNCH, offering="t4"), "the offering is not configured any more"),
    # drain
    ([slot("draining")], IDLE, "linux-1 is draining"),
    ([slot(cordoned=True)], IDLE, "linux-1 is not idle"),
    ([slot(), a_leased()], IDLE, "linux-1 is not idle"),
    ([slot(idle_since=NOW - 300)], IDLE, "linux-1 is not idle"),
    ([slot()], INTERRUPTED, "linux-1 is not interrupted"),
    # terminate
    ([slot()], TIMEOUT, "linux-1 is ready"),
    ([slot("empty")], FREE, "linux-1 is empty"),
    ([slot("booting", since=NOW - 99)], TIMEOUT, "linux-1 has not timed out"),
    ([slot("draining"), a_leased()], FREE, "linux-1 still has leases"),
    # reset
    ([slot("launching")], COOLED, "linux-1 is launching"),
    ([slot("draining", "hosts-1"), a_leased(leases=(a_small_lease("hosts-1"),))], HOST, "hosts-1 is draining"),
]


@pytest.mark.parametrize(("rows", "decision", "reason"), LOST)
def test_a_decision_that_no_longer_holds_is_skipped_and_changes_nothing(
    rows: list[Row], decision: Decision, reason: str
) -> None:
    assert write(rows, decision) == (reason, False)


def test_the_instances_of_a_gang_use_up_the_capacity_for_each_other() -> None:
    gang = a_pending(components=(msgspec.structs.replace(a_pending().request.components[0], count=2),))
    assert write([slot(), gang], GANG) == (None, True)
    assert write([slot(resources={"cpus": 3}), gang], GANG) == ("linux-1 has too few resources left", False)


def test_a_deposed_leader_writes_nothing() -> None:
    harness = Harness(CONFIG)
    harness.submit("r1", ttl=1)
    harness.now += 2
    with harness.store.transaction() as transaction:
        transaction.take_term("another")
    with pytest.raises(DeposedError):
        list(commit(harness.store, [EXPIRE], harness.planned_rules, LeaderTerm(0, "me"), lambda: "x", NOW))
    assert harness.phase() == "pending"


def test_skipped_decisions_do_not_prevent_the_rest_of_the_chunk() -> None:
    harness = Harness(CONFIG)
    harness.submit("r1", ttl=1)
    harness.submit("r2")
    harness.submit("r3", ttl=1)
    harness.now += 2
    with harness.store.transaction() as transaction:
        leader_term = transaction.take_term("me")
    decisions = [Expire(reservation=name) for name in ("r1", "r2", "r3")]
    ((skipped, *_),) = commit(harness.store, decisions, harness.planned_rules, leader_term, lambda: "x", NOW)
    assert [(each.decision, each.reason) for each in skipped] == [(decisions[1], "the reservation was renewed")]
    assert [harness.phase(name) for name in ("r1", "r2", "r3")] == ["expired", "pending", "expired"]


def test_a_lease_changes_its_state_only_by_legal_moves() -> None:
    """Only a tick may set a deadline; any other cause is a programming error and raises."""
    harness = Harness().leased()
    with harness.store.transaction() as transaction:
        work = UnitOfWork(transaction, "holder")
        work.load(reservations=["r1"])
        current = work.reservations["r1"]
        revoking = tuple(msgspec.structs.replace(lease, state="revoking") for lease in current.leases)
        with pytest.raises(IllegalMoveError, match="lease r1/main: held -> revoking is no legal move"):
            work.put(msgspec.structs.replace(current, leases=revoking))


def test_the_events_of_a_tick_contain_its_term() -> None:
    harness = Harness()
    harness.tick()
    harness.submit("r1")
    harness.tick()
    terms = {event.name: event.detail.get("term") for event in harness.events}
    assert terms["slot_launching"] == harness.store.load_leader_term().term
    assert terms["reservation_submitted"] is None


def test_the_row_of_a_reservation_at_its_limit_names_the_reason_and_the_deadline() -> None:
    reasons, _, harness = write_all([slot(), STRICT, a_limited(restart_policy="on_failure")], [AT_LIMIT])
    row = harness.store.find_reservations(ids=["r1"])[0]
    assert (reasons, row.phase, row.revoke_reason, row.revoke_by) == ([], "revoking", "limit", NOW + 30)
    assert [(lease.state, lease.revoke_by) for lease in row.leases] == [("revoking", NOW + 30)]
    _, _, harness = write_all([slot(), STRICT, a_limited(restart_policy="on_failure")], [OVER_LIMIT])
    row = harness.store.find_reservations(ids=["r1"])[0]
    assert (row.phase, row.reason, row.leases, row.revoke_reason) == ("expired", "limit", (), None)
