"""The lease as a context manager: first renewal, later renewals, revocation, local expiry and exit."""

import os
import threading
import time
import weakref
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from leasehold import CannotBeServed, Client, Ended, NotAnswered
from leasehold.client.lease import Lease
from scheduler.model.waits import Waits
from testbed.processes import wait_for
from tests.builders import a_lease, a_slot
from tests.client.intake import Document, FakeIntake, a_row, accept

WAIT = 20.0
"""Timeout in seconds, longer than any step of these tests takes; a wait ends with its condition."""


class FakeReservation:
    """One reservation at the fake stack; `submit` leases it at once and each `renew` lasts `ttl` seconds."""

    def __init__(self, intake: FakeIntake, ttl: float | None = 60.0) -> None:
        self.intake, self.ttl = intake, ttl
        self.version = 1
        self.fields: Document = {"phase": "leased", "token": 1, "leases": (a_lease("linux-1", token=1),)}
        self.is_deaf = False
        """True: `renew` messages are lost."""
        self.refused: set[str] = set()
        """Verbs that the intake refuses."""
        intake.view_cache.publish([a_slot("linux-1", version=1, instance_type="m7g.large", zone="us-east-1a")])
        intake.handler = self.handle

    def handle(self, verb: str, document: Document) -> Document | None:
        if verb == "submit":
            self.publish(document["id"])
            return accept(verb, document)
        if verb in self.refused:
            fault = {"index": 0, "path": "token", "expected": "the current token", "got": "1"}
            return {"ok": False, "errors": [fault]}
        if verb == "renew" and self.is_deaf:
            return None
        name = document["reservation"]
        if verb in {"release", "cancel"}:
            self.publish(name, phase=f"{verb}d".replace("cancel", "cancelle"), leases=())
        elif verb == "renew":
            self.publish(name)
        return self.describe(name)

    def publish(self, name: str, **changes: Any) -> None:
        """Write its current row to the view and publish a notice."""
        self.version += 1
        self.fields |= changes
        now = time.time()
        expires = None if self.ttl is None else now + self.ttl
        row = a_row(name, version=self.version, marked_at=now, expires_at=expires, leased_at=now, **self.fields)
        self.last = row
        self.intake.publish(row)

    def describe(self, name: str) -> Document:
        return {
            "ok": True,
            "reservation": name,
            "phase": self.last.phase,
            "expires_at": self.last.expires_at,
            "token": self.last.token,
            "deadline": self.last.revoke_by,
            "ttl": self.ttl,
        }


def test_the_body_runs_after_the_first_renewal(intake: FakeIntake, client: Client) -> None:
    FakeReservation(intake)
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        assert intake.verbs()[:2] == ["submit", "renew"]
        assert intake.seen[1][1]["token"] == 1
        held = [lease.is_held]
        assert (lease.token, lease.slot, lease.instance_id, lease.address) == (1, "linux-1", "i-linux-1", "10.0.0.1")
        assert (lease.type, lease.zone, lease.resources) == ("m7g.large", "us-east-1a", {})
        assert lease.deadline is not None
        assert lease.seconds_left is not None
        assert 50 < lease.seconds_left <= 60
        # The deadline is a time of the cluster's clock, which the client knows with an error of some milliseconds.
        assert lease.deadline - client.now() == pytest.approx(lease.seconds_left, abs=1)
    assert [*held, lease.is_held] == [True, False]
    assert intake.verbs()[-1] == "release"


def test_a_lease_that_was_left_is_freed_without_a_garbage_collection(
    intake: FakeIntake, client: Client, no_garbage_collection: None
) -> None:
    FakeReservation(intake)
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        left = weakref.ref(lease)
    del lease
    wait_for(lambda: left() is None, "the freed lease")


def test_a_lease_is_renewed_until_it_ends(intake: FakeIntake, client: Client) -> None:
    holder = FakeReservation(intake, ttl=0.6)
    renewed = threading.Semaphore(0)
    handle = holder.handle

    def count(verb: str, document: Document) -> Document | None:
        if verb == "renew":
            renewed.release()
        return handle(verb, document)

    intake.handler = count
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        for _ in range(4):
            assert renewed.acquire(timeout=WAIT)
        assert lease.is_held
    assert not lease.reason


def test_a_lease_that_cannot_be_renewed_is_lost_when_its_ttl_has_passed(intake: FakeIntake, client: Client) -> None:
    holder = FakeReservation(intake, ttl=0.5)
    lost: list[Lease] = []
    with client.lease(id="r1", system="s", wait=WAIT, on_lost=lost.append) as lease:
        holder.is_deaf = True
        assert lease.lost.wait(WAIT)
        assert not lease.is_held
        assert lease.reason == "it could not be renewed in time"
    assert lost == [lease]


def test_the_ttl_counts_from_the_sending_of_the_renewal(intake: FakeIntake, client: Client) -> None:
    holder = FakeReservation(intake, ttl=60.0)
    handle = holder.handle
    answer_now = threading.Event()

    def slow(verb: str, document: Document) -> Document | None:
        if verb == "renew":
            answer_now.wait(1.0)
        return handle(verb, document)

    intake.handler = slow
    before = time.time()
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        entered = time.time()
        assert lease.deadline is not None
        assert entered - before >= 1.0
        assert lease.deadline <= entered + 60.0 - 0.9


def test_a_renewal_lasts_for_the_ttl_of_its_answer(intake: FakeIntake, client: Client) -> None:
    """The row in the view may lag, so its expiry does not count."""
    holder = FakeReservation(intake, ttl=60.0)
    handle = holder.handle
    intake.handler = lambda verb, document: (answer := handle(verb, document)) and answer | {"ttl": 30.0}
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        assert lease.seconds_left is not None
        assert lease.seconds_left <= 30.0


def test_a_revocation_reports_its_deadline_and_reason(intake: FakeIntake, client: Client) -> None:
    holder = FakeReservation(intake)
    reasons: list[str | None] = []
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        lease.on_revoke(lambda revoked: reasons.append(revoked.reason))
        deadline = time.time() + 30
        holder.publish("r1", phase="revoking", revoke_by=deadline, revoke_reason="preempted")
        assert lease.revoking.wait(WAIT)
        assert lease.is_held
        assert lease.deadline == pytest.approx(deadline, abs=0.1)
    assert reasons == ["preempted"]
    assert intake.verbs()[-1] == "release"


def test_a_callback_added_after_the_revocation_is_called_at_once(intake: FakeIntake, client: Client) -> None:
    holder = FakeReservation(intake)
    revoked: list[Lease] = []
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        holder.publish("r1", phase="revoking", revoke_by=time.time() + 30)
        assert lease.revoking.wait(WAIT)
        lease.on_revoke(revoked.append)
    assert revoked == [lease]


@pytest.mark.parametrize(
    "changes",
    [
        # Requeued: the token is the same, the phase is not.
        {"phase": "pending", "leases": (), "reason": "preempted"},
        # Leased again on another slot.
        {"token": 2},
        {"phase": "expired", "leases": ()},
    ],
)
def test_a_lease_that_ended_in_the_view_is_lost(changes: Document, intake: FakeIntake, client: Client) -> None:
    holder = FakeReservation(intake)
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        holder.publish("r1", **changes)
        assert lease.lost.wait(WAIT)


def test_a_row_older_than_the_lease_changes_nothing(intake: FakeIntake, client: Client) -> None:
    FakeReservation(intake)
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        lease._learn("pending", 0, None, None)
        assert lease.is_held


def test_a_refused_release_is_followed_by_a_cancel(intake: FakeIntake, client: Client) -> None:
    holder = FakeReservation(intake)
    with client.lease(id="r1", system="s", wait=WAIT):
        holder.refused = {"release"}
    assert intake.verbs()[-2:] == ["release", "cancel"]


def test_leaving_a_lease_that_has_ended_raises_nothing(intake: FakeIntake, client: Client) -> None:
    holder = FakeReservation(intake)
    with client.lease(id="r1", system="s", wait=WAIT):
        holder.refused = {"release", "cancel"}


def test_an_error_in_the_body_releases_too(intake: FakeIntake, client: Client) -> None:
    FakeReservation(intake)
    with pytest.raises(KeyError, match="work"), client.lease(id="r1", system="s", wait=WAIT):
        raise KeyError("work")
    assert intake.verbs()[-1] == "release"


def test_a_reservation_that_is_not_leased_in_time_is_released(intake: FakeIntake, client: Client) -> None:
    intake.publish(a_row("r1"))
    with pytest.raises(NotAnswered, match="still pending"), client.lease(id="r1", system="s", wait=0.2):
        pass
    assert intake.verbs() == ["submit", "release"]


@pytest.fixture
def in_vain(intake: FakeIntake, client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ticks, 5 s of cluster time apart, that find that r1 fits on no slot."""
    for name in ("waiting.FIRST_CODE_SECONDS", "waiting.POLL_SECONDS"):
        monkeypatch.setattr(f"leasehold.client.{name}", 0.05)
    intake.publish(a_row("r1"))
    is_over = threading.Event()

    def tick() -> None:
        for number in count():
            intake.view_cache.write_report({"at": 5.0 * number}, Waits(["r1"], [("never_fits", "no slot has 64 cpus")]))
            if is_over.wait(0.05):
                return

    thread = threading.Thread(target=tick)
    thread.start()
    yield
    is_over.set()
    thread.join()


@pytest.mark.usefixtures("in_vain")
def test_a_reservation_that_cannot_be_served_is_cancelled_with_the_reason(intake: FakeIntake, client: Client) -> None:
    why = "never_fits: no slot has 64 cpus"
    with (
        pytest.raises(CannotBeServed, match=f"^r1 cannot be served: {why}$") as caught,
        client.lease(id="r1", system="s"),
    ):
        pass
    assert (caught.value.code, caught.value.reason) == ("never_fits", "no slot has 64 cpus")
    # A busy machine may make the client send a message twice.
    assert list(dict.fromkeys(intake.verbs())) == ["submit", "cancel"]
    # Without a token, so that a lease that was granted in between ends, too.
    cancel = intake.seen[-1][1]
    assert (cancel["reservation"], cancel["reason"], cancel.get("token")) == ("r1", why, None)


@pytest.mark.usefixtures("in_vain")
def test_a_lease_may_wait_although_it_cannot_be_served(intake: FakeIntake, client: Client) -> None:
    with (
        pytest.raises(NotAnswered, match="s: never_fits: no slot has 64 cpus"),
        client.lease(id="r1", system="s", wait=0.4, wait_anyway=True),
    ):
        pass
    assert list(dict.fromkeys(intake.verbs())) == ["submit", "release"]


def test_a_reservation_that_ends_before_it_is_leased_raises_ended(intake: FakeIntake, client: Client) -> None:
    intake.publish(a_row("r1", phase="expired"))
    with pytest.raises(Ended, match="expired"), client.lease(id="r1", system="s"):
        pass


def test_a_lease_replaced_before_its_first_renewal_is_waited_for_again(intake: FakeIntake, client: Client) -> None:
    holder = FakeReservation(intake)
    handle = holder.handle

    def take_back_once(verb: str, document: Document) -> Document | None:
        if verb == "renew" and document["token"] == 1:
            holder.publish("r1", token=2, leases=(a_lease("linux-1", token=2),))
            holder.refused = {"renew"}
            answer = handle(verb, document)
            holder.refused = set()
            return answer
        return handle(verb, document)

    intake.handler = take_back_once
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        assert lease.token == 2


def test_a_lease_is_entered_only_once(intake: FakeIntake, client: Client) -> None:
    FakeReservation(intake)
    lease = client.lease(id="r1", system="s", wait=WAIT)
    with lease, pytest.raises(RuntimeError, match="r1 was entered before"), lease:
        pass
    with pytest.raises(RuntimeError, match="r1 was entered before"), lease:
        pass
    assert intake.verbs().count("submit") == 1


def test_a_forked_child_that_leaves_the_body_does_not_release(intake: FakeIntake, blocking_client: Client) -> None:
    FakeReservation(intake)
    with blocking_client.lease(id="r1", system="s", wait=WAIT) as lease:
        child = os.fork()
        if child == 0:
            # No exception may leave the child: pytest would continue in it.
            try:
                lease.__exit__(None, None, None)
            finally:
                os._exit(0)
        assert os.waitpid(child, 0) == (child, 0)
        assert "release" not in intake.verbs()
    assert intake.verbs()[-1] == "release"


def test_a_lease_that_never_expires_has_no_deadline(intake: FakeIntake, client: Client) -> None:
    FakeReservation(intake, ttl=None)
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        assert lease.deadline is None
        assert lease.is_held


def test_a_lease_keeps_the_facts_of_a_machine_that_the_view_has_lost(intake: FakeIntake, client: Client) -> None:
    """An elastic instance is reported only after the client has read the row of its machine."""
    holder = FakeReservation(intake)
    with client.lease(id="r1", system="s", wait=WAIT) as lease:
        intake._redis.hdel("leasehold:view:slots", "linux-1")
        elastic = a_lease("linux-2", component="more.0", kind="elastic", token=5)
        holder.publish("r1", leases=(a_lease("linux-1", token=1), elastic))
        intake.publish(a_slot("linux-2", version=1))
        changes = lease.changes(timeout=WAIT)
        assert next(changes).placement.address == "10.0.0.1"
        assert [each.instance_id for each in lease.placements] == ["i-linux-1", "i-linux-2"]
        assert lease.address == "10.0.0.1"
