"""The contract of the port `Notifier`, in memory and on Redis."""

import json
import threading

import pytest
import redis

from leasehold import Client
from scheduler.ports import ForeignAddressError, ViewUnavailableError
from scheduler.protocol.names import TICKS
from scheduler.view.connection import make_redis
from scheduler.view.memory import MemoryNotifier
from scheduler.view.redis_ports import RedisNotifier
from testbed.processes import wait_for
from tests.view.conftest import MakeNotifier


class Ticks:
    """Counts the tick messages; with `is_broken` sending fails."""

    def __init__(self) -> None:
        self.sent, self.is_broken = 0, False

    def __call__(self) -> None:
        if self.is_broken:
            raise ConnectionError("no broker")
        self.sent += 1


def test_kicks_send_one_message_until_a_tick_acknowledges_them(make_notifier: MakeNotifier) -> None:
    ticks = Ticks()
    notifier = make_notifier(ticks)
    for _ in range(3):
        notifier.kick()
    assert ticks.sent == 1
    notifier.hear()
    assert ticks.sent == 1
    notifier.kick()
    notifier.kick()
    assert ticks.sent == 2


def test_a_kick_whose_message_was_not_sent_does_not_suppress_the_next(make_notifier: MakeNotifier) -> None:
    ticks = Ticks()
    notifier = make_notifier(ticks)
    ticks.is_broken = True
    with pytest.raises(ConnectionError):
        notifier.kick()
    ticks.is_broken = False
    notifier.kick()
    assert ticks.sent == 1


def test_processes_that_kick_at_once_send_one_message(redis_url: str) -> None:
    ticks, start = Ticks(), threading.Barrier(8)

    def kick() -> None:
        with make_redis(redis_url) as client:
            start.wait()
            RedisNotifier(client, ticks).kick()

    threads = [threading.Thread(target=kick) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ticks.sent == 1


def test_an_unacknowledged_kick_suppresses_messages_for_two_seconds(redis_client: redis.Redis) -> None:
    ticks = Ticks()
    notifier = RedisNotifier(redis_client, ticks)
    notifier.kick()
    left = redis_client.pttl("leasehold:kick")
    assert isinstance(left, int)
    assert 0 < left <= 2000
    redis_client.pexpire("leasehold:kick", 1)
    while redis_client.exists("leasehold:kick"):
        pass
    notifier.kick()
    assert ticks.sent == 2


def test_in_memory_the_two_seconds_follow_the_given_clock() -> None:
    now, ticks = [0.0], Ticks()
    notifier = MemoryNotifier(ticks, clock=lambda: now[0])
    notifier.kick()
    now[0] = 1.9
    notifier.kick()
    now[0] = 2.0
    notifier.kick()
    assert (notifier.kicks, notifier.ticks_sent, ticks.sent) == (3, 2, 2)


def test_a_notice_without_a_subscriber_raises_nothing(make_notifier: MakeNotifier) -> None:
    make_notifier(Ticks()).notify({"r1": {"event": "leased"}})


def test_a_notice_reaches_the_subscribers_of_its_reservation(redis_client: redis.Redis) -> None:
    # redis-py has no types for this method.
    with redis_client.pubsub(ignore_subscribe_messages=True) as listener:  # type: ignore[no-untyped-call]
        listener.subscribe("leasehold:notice:r1")
        assert listener.get_message(timeout=5) is None  # the subscription was confirmed
        notifier = RedisNotifier(redis_client, Ticks())
        notifier.notify({"r2": {"event": "leased"}, "r1": {"event": "leased", "token": 7}})
        message = listener.get_message(timeout=5)
    assert message is not None
    assert json.loads(message["data"]) == {"event": "leased", "token": 7}


def test_a_hint_without_a_subscribed_host_raises_nothing(make_notifier: MakeNotifier) -> None:
    make_notifier(Ticks()).push({"lab-1": {"slot": "lab-1"}})


def test_a_hint_reaches_the_host_of_the_slot(redis_client: redis.Redis, redis_url: str) -> None:
    with Client(redis_url) as client:
        hints = client.hosts.hints("lab-1")
        hints.listen()
        assert not hints.wait(0.05)
        notifier = RedisNotifier(redis_client, Ticks())
        notifier.push({"lab-2": {"slot": "lab-2"}})
        assert not hints.wait(0.05)
        notifier.push({"lab-1": {"slot": "lab-1"}})
        assert hints.wait(5)
        hints.close()


def test_an_answer_is_kept_for_a_minute_at_its_address(redis_client: redis.Redis) -> None:
    notifier = RedisNotifier(redis_client, Ticks())
    notifier.reply("leasehold:reply:9f-1", {"ok": True})
    notifier.reply("leasehold:reply:9f-1", {"ok": False, "errors": []})
    stored = redis_client.lrange("leasehold:reply:9f-1", 0, -1)
    assert isinstance(stored, list)
    assert [json.loads(each) for each in stored] == [{"ok": True}, {"ok": False, "errors": []}]
    left = redis_client.ttl("leasehold:reply:9f-1")
    assert isinstance(left, int)
    assert 50 < left <= 60


def test_answers_are_written_together_except_where_something_else_is_stored(redis_client: redis.Redis) -> None:
    notifier = RedisNotifier(redis_client, Ticks())
    redis_client.set("leasehold:reply:b", "no list")
    answers = [(f"leasehold:reply:{name}", {"ok": True}) for name in ("a", "b", "c")]
    assert notifier.reply_to_all(answers) == ["leasehold:reply:b"]
    assert [redis_client.llen(f"leasehold:reply:{name}") for name in ("a", "c")] == [1, 1]
    with pytest.raises(ViewUnavailableError):
        notifier.reply("leasehold:reply:b", {"ok": True})


@pytest.mark.parametrize(
    "address",
    [
        # keys of Leasehold
        "leasehold:leader",
        "leasehold:view:generation",
        # a Celery queue
        "reservations",
        # names outside the prefix
        "leasehold:reply:",
        "leasehold:reply:a b",
        "leasehold:reply:a\n",
        "leasehold:reply:a:b",
        "x:leasehold:reply:a",
        "leasehold:reply:" + "a" * 101,
        "",
    ],
)
def test_a_reply_address_cannot_name_another_key(make_notifier: MakeNotifier, address: str) -> None:
    with pytest.raises(ForeignAddressError):
        make_notifier(Ticks()).reply(address, {"ok": True})


def test_nothing_is_written_at_a_foreign_address(redis_client: redis.Redis) -> None:
    with pytest.raises(ForeignAddressError):
        RedisNotifier(redis_client, Ticks()).reply("reservations", {})
    assert redis_client.dbsize() == 0


def test_a_kick_with_a_written_message_sends_it_in_one_round_trip(redis_client: redis.Redis) -> None:
    ticks = Ticks()
    notifier = RedisNotifier(redis_client, ticks, write_tick=lambda: "a tick")
    notifier.kick()
    notifier.kick()
    assert redis_client.lrange(TICKS, 0, -1) == [b"a tick"]
    notifier.hear()
    notifier.kick()
    assert redis_client.llen(TICKS) == 2
    assert ticks.sent == 0


def test_a_kick_is_sent_in_the_other_way_if_the_queue_takes_no_message(redis_client: redis.Redis) -> None:
    redis_client.set(TICKS, "no list")
    ticks = Ticks()
    RedisNotifier(redis_client, ticks, write_tick=lambda: "a tick").kick()
    assert ticks.sent == 1


def test_a_kick_wakes_the_process_that_waits_for_one_and_sends_no_message(redis_url: str) -> None:
    found: list[bool] = []
    with make_redis(redis_url) as client, make_redis(redis_url) as other:
        notifier = RedisNotifier(client, Ticks(), write_tick=lambda: "a tick")
        waiting = threading.Thread(target=lambda: found.append(notifier.await_kick(10)))
        waiting.start()
        wait_for(lambda: bool(client.exists("leasehold:kick:waits")), "the wait for a kick")
        for _ in range(2):
            RedisNotifier(other, Ticks(), write_tick=lambda: "a tick").kick()
        waiting.join()
        assert found == [True]
        assert client.llen(TICKS) == 0
        # The tick has begun, and no process waits: the next kick sends a message.
        notifier.hear()
        notifier.kick()
        assert client.llen(TICKS) == 1
        assert not notifier.await_kick(10)


def test_without_a_kick_the_wait_ends_and_the_next_kick_sends_a_message(redis_client: redis.Redis) -> None:
    notifier = RedisNotifier(redis_client, Ticks(), write_tick=lambda: "a tick")
    assert not notifier.await_kick(0.01)
    notifier.kick()
    assert redis_client.llen(TICKS) == 1


def test_a_kick_at_the_end_of_the_wait_is_not_lost(redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    notifier = RedisNotifier(redis_client, Ticks(), write_tick=lambda: "a tick")

    def wait_in_vain(*_arguments: object, **_options: object) -> None:
        notifier.kick()

    monkeypatch.setattr(redis_client, "blpop", wait_in_vain)
    assert notifier.await_kick(0.01)
    assert redis_client.llen(TICKS) == 0
