"""The middleware in front of the queues: which messages it passes on."""

import json
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import redis
from celery.signals import before_task_publish
from kombu import Connection

from scheduler.protocol.names import CANARY, HEALTH, RESERVATIONS, TICKS, task_name
from scheduler.view.memory import MemoryMeter
from tasks.admission import Arrival, find_admission
from tasks.app import app
from tasks.messages import ExpiredMessages
from tasks.transport import Channel, Transport
from testbed.servers import redis_client, redis_server, redis_url
from tests.system.bad_messages import an_envelope
from workers.services import PerProcess
from workers.settings import read_settings

__all__ = ["redis_client", "redis_server", "redis_url"]


class Clock:
    """Cluster time: the wall clock of this host is wrong by this number of seconds."""

    def __init__(self) -> None:
        self.wrong_by = 0.0

    def now(self) -> float:
        return time.time() - self.wrong_by


@pytest.fixture(autouse=True, scope="module")
def _tasks() -> None:
    app.loader.import_default_modules()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Cluster time in this process."""
    clock = Clock()
    monkeypatch.setattr(app.services, "_clock", PerProcess(lambda: clock), raising=False)
    return clock


@pytest.fixture(autouse=True)
def meter(monkeypatch: pytest.MonkeyPatch) -> MemoryMeter:
    """The counters of this process, to which the test's expired messages are added. Counts that are due only a second
    later do not reach a later test.
    """
    meter = MemoryMeter()
    monkeypatch.setattr(app.services, "_meter", PerProcess(lambda: meter), raising=False)
    for module in ("transport", "held_messages"):
        monkeypatch.setattr(f"tasks.{module}.expired", ExpiredMessages())
    return meter


def deliver(**headers: Any) -> list[dict[str, Any]]:
    """Return which messages pass of one message with these headers to the queue of ticks."""
    envelope = an_envelope(TICKS, task_name(TICKS, "tick"), [[], {}, None], "one")
    envelope["headers"] |= headers
    transport: Any = Transport(Connection("redis://127.0.0.1:1"))
    passed: list[dict[str, Any]] = []
    transport._callbacks[TICKS] = passed.append
    transport._deliver(envelope, TICKS)
    return passed


@pytest.mark.parametrize("zone", [UTC, None], ids=["with its zone", "in UTC without a zone"])
@pytest.mark.parametrize(("seconds", "passes"), [(-3600, False), (-1, False), (3600, True)])
def test_a_message_that_is_too_late_is_discarded(zone: Any, seconds: float, passes: bool) -> None:
    expires = (datetime.now(UTC) + timedelta(seconds=seconds)).replace(tzinfo=zone)
    assert bool(deliver(expires=expires.isoformat())) is passes


@pytest.mark.parametrize("limits", [[0.1, 0.1], [None, None], [120.0, 100.0], "x", 7, {}, None])
def test_a_senders_time_limits_are_discarded(limits: Any) -> None:
    (passed,) = deliver(timelimit=limits)
    assert "timelimit" not in passed["headers"]


def test_a_message_without_an_expiry_passes() -> None:
    assert deliver(expires=None)
    assert deliver()


@pytest.mark.parametrize("wrong_by", [-600, -20, 20, 600])
def test_a_wrong_wall_clock_of_the_worker_neither_expires_nor_keeps_a_message(clock: Clock, wrong_by: float) -> None:
    clock.wrong_by = wrong_by
    for seconds, passes in ((5, True), (-5, False)):
        expires = datetime.fromtimestamp(clock.now() + seconds, UTC)
        assert bool(deliver(expires=expires.isoformat())) is passes


@pytest.mark.parametrize("wrong_by", [-600, 600])
def test_sent_messages_have_cluster_time(clock: Clock, wrong_by: float) -> None:
    clock.wrong_by = wrong_by
    by_wall = datetime.fromtimestamp(time.time() + 10, UTC)
    headers = {"expires": by_wall.isoformat()}
    before_task_publish.send("leasehold.ticks.tick", headers=headers)
    sent_at = float(headers["sent_at"])
    assert sent_at == pytest.approx(clock.now(), abs=5)
    assert datetime.fromisoformat(headers["expires"]).timestamp() == pytest.approx(sent_at + 10, abs=5)
    never: dict[str, Any] = {"expires": None}
    before_task_publish.send("leasehold.ticks.tick", headers=never)
    assert never["expires"] is None


def test_expired_messages_are_counted_by_queue(meter: MemoryMeter, clock: Clock) -> None:
    gone = datetime.fromtimestamp(clock.now() - 5, UTC).isoformat()
    dropped = ExpiredMessages()
    for _ in range(3):
        dropped.note(TICKS, task_name(TICKS, "tick"))
        # A canary that nothing answered in time, as at each start of a worker, is no message that was lost.
        dropped.note(HEALTH, task_name(HEALTH, CANARY))
    dropped._counted_at = float("-inf")
    dropped.report()
    assert not deliver(expires=gone)
    assert meter.counts["leasehold_expired_messages_total", (("queue", TICKS),)] >= 3
    assert ("leasehold_expired_messages_total", (("queue", HEALTH),)) not in meter.counts


@pytest.mark.parametrize("wrong_by", [-600.0, 600.0])
def test_messages_that_a_worker_holds_are_given_back_by_cluster_time(
    redis_client: redis.Redis, redis_url: str, clock: Clock, wrong_by: float
) -> None:
    """A message that another worker holds is neither taken from it too early nor kept from the others without end."""
    redis_client.flushall()
    clock.wrong_by = wrong_by
    options = {"visibility_timeout": 60, "unacked_restore_interval": 1}
    with Connection(redis_url, transport=Transport, transport_options=options) as connection:
        channel: Any = connection.channel()
        with closing(channel):
            connection.SimpleQueue("one", channel=channel).put("x")
            held = connection.SimpleQueue("one", channel=channel).get(timeout=10)
            noted: Any = redis_client.zrange("unacked_index", 0, -1, withscores=True)
            assert noted[0][1] == pytest.approx(clock.now(), abs=30)
            channel.qos.restore_visible(interval=1)
            assert redis_client.llen("one") == 0
            redis_client.zadd("unacked_index", {str(held.delivery_tag): clock.now() - 61})
            channel.qos.restore_visible(interval=1)
            assert redis_client.llen("one") == 1


@pytest.mark.parametrize("wrong_by", [-600.0, 600.0])
def test_queries_are_abandoned_by_cluster_time(
    redis_client: redis.Redis, redis_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, wrong_by: float
) -> None:
    monkeypatch.setattr(app.services, "settings", read_settings({"broker": {"url": redis_url}}))
    monkeypatch.setattr(app.services, "_redis", PerProcess(lambda: redis_client), raising=False)
    clock.wrong_by = wrong_by
    admission = find_admission.__wrapped__()
    assert admission is not None
    for seconds, is_abandoned in ((0, False), (100, True)):
        asked = Arrival("m", "query", None, None, sent_at=clock.now() - seconds, patience=50.0)
        assert admission._is_abandoned(asked) is is_abandoned
    admission._broker.close()


DEEP: Any = []
for _ in range(40):
    DEEP = [DEEP]
UNREADABLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # What is wrong -> fields of the document, headers
    "nested too deeply": ({"labels": DEEP}, {}),
    "a value that only kombu knows": ({"labels": {"__type__": "datetime", "__value__": 7}}, {}),
    "an ETA": ({}, {"eta": "2026-11-28T00:00:00Z"}),
    "an unknown task": ({}, {"task": task_name(RESERVATIONS, "sumbit")}),
}


@pytest.mark.usefixtures("clock", "meter")
@pytest.mark.parametrize("what", UNREADABLE)
def test_a_request_that_a_worker_cannot_read_is_answered_at_once(
    redis_client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Its sender would wait for the answer until its time is over, and keep a place from others meanwhile."""
    monkeypatch.setattr(app.services, "settings", read_settings({"broker": {"url": redis_url}}))
    monkeypatch.setattr(app.services, "_redis", PerProcess(lambda: redis_client), raising=False)
    monkeypatch.setattr("tasks.transport.find_admission", find_admission.__wrapped__)
    more, headers = UNREADABLE[what]
    address = "leasehold:reply:unreadable"
    redis_client.delete(address)
    document = {"id": "r1", "system": "s", "request": "unreadable", "reply_to": address, **more}
    envelope = an_envelope(RESERVATIONS, task_name(RESERVATIONS, "submit"), [[document], {}, None], "one")
    envelope["headers"] |= headers
    transport: Any = Transport(Connection("redis://127.0.0.1:1"))
    transport._deliver(envelope, RESERVATIONS)
    (answer,) = map(json.loads, cast("list[bytes]", redis_client.lrange(address, 0, -1)))
    assert answer["ok"] is False
    assert [each["index"] for each in answer["errors"]] == [0]


def test_a_queue_and_the_notes_of_messages_with_a_wrong_type_are_set_aside_and_made_again(
    redis_client: redis.Redis, redis_url: str
) -> None:
    """Sending, waiting for a message and noting it continue; otherwise a worker would end with each of them."""
    redis_client.flushall()
    with Connection(redis_url, transport=Transport, transport_options={"unacked_restore_interval": 1}) as connection:
        channel: Any = connection.channel()
        with closing(channel):
            ticks, others = (connection.SimpleQueue(name, channel=channel) for name in ("ticks", "one"))
            redis_client.set("ticks", "no list")
            ticks.put("x")
            assert redis_client.llen("ticks") == 1
            redis_client.delete("ticks")
            redis_client.hset("ticks", "no", "list")
            with pytest.raises(ticks.Empty):
                ticks.get(timeout=1)
            redis_client.set("unacked", "no hash")
            others.put("y")
            assert others.get(timeout=10).payload == "y"
    kept = {bytes(key).decode() for key in cast("list[bytes]", redis_client.keys("leasehold:set-aside:*"))}
    assert kept == {f"leasehold:set-aside:{key}" for key in ("ticks", "unacked")}


def hold(connection: Connection, channel: Any, body: str = "x") -> Any:
    """A message that this worker holds."""
    queue = connection.SimpleQueue("one", channel=channel)
    queue.put(body)
    return queue.get(timeout=10)


@pytest.mark.parametrize("key", ["unacked", "unacked_index"])
@pytest.mark.parametrize("end", ["ack", "requeue"])
def test_a_message_is_acknowledged_or_given_back_where_its_note_has_a_wrong_type(
    redis_client: redis.Redis, redis_url: str, key: str, end: str
) -> None:
    """The worker continues, and other messages that it holds stay noted: another worker gets them if this one dies."""
    redis_client.flushall()
    with Connection(redis_url, transport=Transport) as connection:
        channel: Any = connection.channel()
        with closing(channel):
            other, held = hold(connection, channel, "other"), hold(connection, channel)
            redis_client.delete(key)
            redis_client.set(key, "of another type")
            held.ack() if end == "ack" else held.requeue()
            assert redis_client.llen("one") == (1 if end == "requeue" else 0)
            tag = str(other.delivery_tag).encode()
            assert (redis_client.hkeys("unacked"), redis_client.zrange("unacked_index", 0, -1)) == ([tag], [tag])
            other.ack()
            assert not redis_client.exists("unacked", "unacked_index")
    assert redis_client.get(f"leasehold:set-aside:{key}") == b"of another type"


@pytest.mark.parametrize("note", [b"\xff", b"{", b"7", b"[1, 2]", b'[7, "", "one"]', b'[{}, 7, "one"]'])
def test_an_unreadable_note_of_a_message_keeps_no_other_message_from_its_queue(
    redis_client: redis.Redis, redis_url: str, clock: Clock, note: bytes
) -> None:
    redis_client.flushall()
    options = {"visibility_timeout": 60, "unacked_restore_interval": 1}
    with Connection(redis_url, transport=Transport, transport_options=options) as connection:
        channel: Any = connection.channel()
        with closing(channel):
            held = hold(connection, channel)
            redis_client.hset("unacked", "broken", note)
            long_ago = clock.now() - 120
            redis_client.zadd("unacked_index", {"broken": long_ago + 1, str(held.delivery_tag): long_ago})
            channel.qos.restore_visible(interval=1)
            channel.qos.restore_visible(interval=1)
            assert redis_client.llen("one") == 1
            assert not redis_client.exists("unacked", "unacked_index")
    assert redis_client.hgetall("leasehold:set-aside:unacked:contents") == {b"broken": note}
    assert redis_client.llen("leasehold:set-aside") == 1


@pytest.mark.parametrize(("held", "has_list", "takes"), [(1, False, False), (1, True, True), (2, False, True)])
def test_an_idle_worker_passes_its_first_single_request_on_before_it_takes_more(
    held: int, has_list: bool, takes: bool
) -> None:
    calls: list[Any] = []

    class Busy(Channel):
        """A channel of a worker that holds some messages."""

        active_queues: Any = frozenset({RESERVATIONS})
        connection: Any = SimpleNamespace(has_list=has_list)
        qos: Any = SimpleNamespace(held=held, room=5, unacked_key="", unacked_index_key="", forget=list)

        def _create_client(self, asynchronous: bool = False) -> None:
            """Return no client."""

    class Script:
        """The script that takes messages; it finds none."""

        registered_client = None

        def __call__(self, **arguments: Any) -> list[Any]:
            calls.append(arguments)
            return []

    channel: Any = Busy.__new__(Busy)
    channel._take_messages = Script()
    channel._take_more()
    assert bool(calls) is takes
