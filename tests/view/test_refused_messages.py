"""Refused messages: all are counted; a few of each defect are kept until a process reads them."""

import redis

from scheduler.ports import Meter, RefusedMessage
from scheduler.ports.view import MOST_REFUSED, REFUSED_SECONDS
from scheduler.view.connection import make_redis
from scheduler.view.memory import MemoryMeter
from scheduler.view.metric_table import REFUSED
from scheduler.view.redis_meter import RedisMeter
from tests.builders import NOW

NOWHERE = "redis://127.0.0.1:1/0"


def a_refused(number: int, defect: str = "task") -> RefusedMessage:
    fault = {"path": "headers.task", "expected": "a task of the queue launch", "got": "null"}
    fields = {"at": NOW, "queue": "launch", "task": "?", "message": f"m{number}", "defect": defect}
    return RefusedMessage(**fields, **fault)  # type: ignore[arg-type]


def test_refused_messages_are_taken_once_in_order(meter: Meter) -> None:
    refused = [a_refused(number) for number in range(3)]
    for each in refused:
        meter.note_refused(each)
    assert meter.take_refused() == refused
    assert meter.take_refused() == []
    meter.put_back_refused(refused[:2])
    meter.put_back_refused([])
    assert meter.take_refused() == refused[:2]


def test_all_refused_messages_are_counted_and_a_few_are_kept(meter: Meter) -> None:
    """The limit applies to each defect, so messages with one defect do not displace those with another."""
    for number in range(MOST_REFUSED + 5):
        meter.note_refused(a_refused(number))
    meter.note_refused(a_refused(99, "document"))
    assert [each.message for each in meter.take_refused()] == [*(f"m{n}" for n in range(MOST_REFUSED)), "m99"]
    labels = {"queue": "launch", "defect": "task"}
    if isinstance(meter, MemoryMeter):
        assert meter.counts[REFUSED, (("defect", "task"), ("queue", "launch"))] == MOST_REFUSED + 5
    elif isinstance(meter, RedisMeter):
        assert meter.read().counters[REFUSED][tuple(labels.values())] == MOST_REFUSED + 5


def test_the_limit_of_kept_messages_ends_after_a_minute(redis_client: redis.Redis) -> None:
    """The minute is the expiry of a counter in Redis."""
    meter = RedisMeter(redis_client)
    for number in range(MOST_REFUSED + 1):
        meter.note_refused(a_refused(number))
    assert 0 < redis_client.ttl("leasehold:refused:task") <= REFUSED_SECONDS
    meter.take_refused()
    redis_client.delete("leasehold:refused:task")
    meter.note_refused(a_refused(99))
    assert [each.message for each in meter.take_refused()] == ["m99"]


def test_without_redis_a_refused_message_raises_nothing() -> None:
    meter = RedisMeter(make_redis(NOWHERE))
    meter.note_refused(a_refused(1))
    meter.put_back_refused([a_refused(1)])
    assert meter.take_refused() == []
