"""The client's clock is cluster time: the time of Redis plus the published offset. Its wall clock has no effect."""

import logging
import time
from collections.abc import Iterator

import pytest
import redis
import time_machine

from leasehold import Client
from leasehold.client.redis import cluster_time
from leasehold.client.redis.cluster_time import ClientClock
from scheduler.view.connection import make_redis
from tests.client.intake import Document, FakeIntake
from tests.client.test_lease import WAIT, FakeReservation

KEY = "leasehold:clock"
NEAR = 10.0
"""Seconds that a query of Redis may take on a busy machine; far less than the shifts in these tests."""
SHIFTS = pytest.mark.parametrize("shift", [600.0, -600.0])


@pytest.fixture
def clock(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> ClientClock:
    monkeypatch.setattr(cluster_time, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(cluster_time, "DOUBT_SECONDS", 0.0)
    return ClientClock(redis_client, "leasehold:clock")


@SHIFTS
def test_the_clock_is_the_time_of_redis_plus_the_published_offset(
    redis_client: redis.Redis, clock: ClientClock, shift: float
) -> None:
    right = time.time()
    redis_client.set(KEY, repr(50.5))
    with time_machine.travel(right + shift):
        assert clock.now() == pytest.approx(right + 50.5, abs=NEAR)


def test_without_a_published_offset_the_clock_is_the_time_of_redis(
    redis_client: redis.Redis, clock: ClientClock
) -> None:
    right = time.time()
    with time_machine.travel(right + 600):
        assert clock.now() == pytest.approx(right, abs=NEAR)


def test_a_jump_of_the_clients_wall_clock_does_not_move_the_clock(clock: ClientClock) -> None:
    right = clock.now()
    with time_machine.travel(right - 600):
        assert clock.now() == pytest.approx(right, abs=NEAR)
        clock.refresh()
        assert clock.now() == pytest.approx(right, abs=NEAR)


@pytest.mark.parametrize("before", [None, "0.25"])
def test_a_new_offset_is_used_after_two_publications(
    redis_client: redis.Redis, clock: ClientClock, before: str | None
) -> None:
    """When the clock of Redis jumps, the published offset is wrong until the leader publishes the next one.

    See PublishedClock.
    """
    if before is not None:
        redis_client.set(KEY, before)
    right = clock.now()
    redis_client.set(KEY, "600.0")
    for _ in range(3):
        clock.refresh()
        assert clock.now() == pytest.approx(right, abs=NEAR)
    redis_client.set(KEY, "600.125")
    clock.refresh()
    assert clock.now() == pytest.approx(right + 600, abs=NEAR)


def test_a_jump_of_redis_that_the_leader_has_corrected_does_not_move_the_clock(
    redis_client: redis.Redis, clock: ClientClock
) -> None:
    right = clock.now()
    redis_client.set(KEY, "600.0")
    clock.refresh()
    redis_client.set(KEY, "0.125")
    for _ in range(3):
        clock.refresh()
        assert clock.now() == pytest.approx(right, abs=NEAR)


def test_an_offset_that_disappears_before_its_second_publication_does_not_move_the_clock(
    redis_client: redis.Redis, clock: ClientClock
) -> None:
    """After a flush no offset is published until the next tick. The time of Redis alone is not cluster time."""
    redis_client.set(KEY, "50.5")
    right = clock.now()
    redis_client.set(KEY, "600.0")
    clock.refresh()
    redis_client.delete(KEY)
    for _ in range(3):
        clock.refresh()
        assert clock.now() == pytest.approx(right, abs=NEAR)


def test_without_redis_the_clock_continues_from_its_last_value(
    clock: ClientClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = clock.now()
    monkeypatch.setattr(clock, "_redis", make_redis("redis://127.0.0.1:1/0"))
    with time_machine.travel(right + 600):
        clock.refresh()
        assert clock.now() == pytest.approx(right, abs=NEAR)


@pytest.fixture
def poor_redis(redis_client: redis.Redis, redis_url: str) -> Iterator[redis.Redis]:
    """A connection to the shared Redis as a Redis user without permission for TIME."""
    redis_client.acl_setuser("poor", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-time"])
    with make_redis(redis_url.replace("redis://", "redis://poor:any@")) as poor:
        yield poor
    redis_client.acl_deluser("poor")


@pytest.mark.usefixtures("clock")
def test_without_permission_for_time_the_clock_is_the_wall_clock_and_warns_once(
    poor_redis: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "leasehold")
    clock = ClientClock(poor_redis, "leasehold:clock")
    for _ in range(3):
        assert clock.now() == pytest.approx(time.time(), abs=NEAR)
        clock.refresh()
    (warned,) = caplog.messages
    assert warned.startswith("deadlines follow this host's clock, which may be wrong: Redis refuses to return the time")


@pytest.mark.usefixtures("clock")
def test_without_permission_for_the_offset_the_clock_is_the_time_of_redis(
    redis_client: redis.Redis, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    redis_client.set(KEY, "50.5")
    redis_client.acl_setuser("poor", enabled=True, nopass=True, keys=["leasehold:reply:*"], commands=["+@all"])
    right = time.time()
    with make_redis(redis_url.replace("redis://", "redis://poor:any@")) as poor, time_machine.travel(right + 600):
        assert ClientClock(poor, "leasehold:clock").now() == pytest.approx(right, abs=NEAR)
    redis_client.acl_deluser("poor")
    assert caplog.messages == []


@SHIFTS
def test_a_lease_that_is_revoked_is_held_until_its_deadline_in_cluster_time(
    intake: FakeIntake, client: Client, shift: float
) -> None:
    right = time.time()
    holder = FakeReservation(intake)
    with time_machine.travel(right + shift), client.lease(id="r1", system="s", wait=WAIT) as lease:
        deadline = right + 90.0
        holder.publish("r1", phase="revoking", revoke_by=deadline)
        assert lease.revoking.wait(WAIT)
        assert not lease.lost.is_set()
        assert lease.revoke_by == deadline
        assert lease.seconds_left is not None
        assert lease.seconds_left == pytest.approx(60.0, abs=NEAR)
        assert lease.deadline == pytest.approx(right + 60.0, abs=NEAR)


@SHIFTS
def test_a_revoked_lease_is_lost_at_its_deadline_in_cluster_time(
    intake: FakeIntake, client: Client, shift: float
) -> None:
    right = time.time()
    holder = FakeReservation(intake)
    with client.lease(id="r1", system="s", wait=WAIT) as lease, time_machine.travel(right + shift):
        holder.publish("r1", phase="revoking", revoke_by=client.now() + 0.5)
        assert lease.revoking.wait(WAIT)
        assert lease.lost.wait(WAIT)


@SHIFTS
def test_the_sending_time_of_a_request_is_in_cluster_time(
    intake: FakeIntake, client: Client, monkeypatch: pytest.MonkeyPatch, shift: float
) -> None:
    envelopes: list[Document] = []
    take = intake._take

    def keep(envelope: Document) -> None:
        envelopes.append(envelope)
        take(envelope)

    monkeypatch.setattr(intake, "_take", keep)
    right = time.time()
    with time_machine.travel(right + shift):
        client.reserve(id="r1", system="s")
    assert envelopes[0]["headers"]["sent_at"] == pytest.approx(right, abs=NEAR)
