"""The script with which a worker takes several messages of its queue in one round trip."""

import json

import pytest
import redis

from scheduler.view.connection import load_script

TASKS = ["renew", "submit"]
TAKEN_AT = 1000.5


def make_message(number: int, task: str = "submit", **properties: object) -> bytes:
    delivery = {"delivery_tag": f"t{number}", "delivery_info": {"exchange": "", "routing_key": "reservations"}}
    return json.dumps({"headers": {"task": task}, "properties": delivery | properties}).encode()


FIRST, SECOND, THIRD = map(make_message, range(3))


def take(client: redis.Redis, most: int = 10, longest: int = 200) -> list[bytes]:
    """Return the messages that were taken, after a look at their records."""
    keys = ["reservations", "unacked", "unacked_index"]
    found = load_script(client, "take_messages")(keys=keys, args=[most, longest, TAKEN_AT, *TASKS])
    for tag, message in zip(found[::2], found[1::2], strict=True):
        assert json.loads(client.hget("unacked", tag) or b"") == [json.loads(message), "", "reservations"]
        assert client.zscore("unacked_index", tag) == TAKEN_AT
    return list(found[1::2])


def test_the_oldest_messages_are_taken_first_and_the_rest_stays(redis_client: redis.Redis) -> None:
    redis_client.lpush("reservations", FIRST, SECOND, THIRD)
    assert take(redis_client, most=2) == [FIRST, SECOND]
    assert redis_client.lrange("reservations", 0, -1) == [THIRD]
    assert take(redis_client, most=2) == [THIRD]
    assert take(redis_client, most=2) == []


def test_a_long_message_ends_the_list_and_stays(redis_client: redis.Redis) -> None:
    redis_client.lpush("reservations", FIRST, FIRST + b" " * 200, THIRD)
    assert take(redis_client) == [FIRST]
    assert redis_client.llen("reservations") == 2


def test_a_message_of_another_task_ends_the_list_and_stays(redis_client: redis.Redis) -> None:
    """A worker holds few of them, so that they reach a process of any worker soon."""
    redis_client.lpush("reservations", FIRST, FIRST.replace(b"submit", b"explain"), THIRD)
    assert take(redis_client) == [FIRST]
    assert redis_client.llen("reservations") == 2


@pytest.mark.parametrize(
    "message", [make_message(1, delivery_tag=1), make_message(1, delivery_info=None), b'["submit"']
)
def test_a_message_without_a_delivery_tag_ends_the_list_and_stays(redis_client: redis.Redis, message: bytes) -> None:
    redis_client.lpush("reservations", FIRST, message, THIRD)
    assert take(redis_client) == [FIRST]
    assert redis_client.llen("reservations") == 2
    assert redis_client.hkeys("unacked") == [b"t0"]


def test_no_message_is_taken_if_its_record_cannot_be_stored(redis_client: redis.Redis) -> None:
    redis_client.lpush("reservations", FIRST)
    redis_client.set("unacked", "of a wrong type")
    with pytest.raises(redis.ResponseError):
        take(redis_client)
    assert redis_client.lrange("reservations", 0, -1) == [FIRST]
