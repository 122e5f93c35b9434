"""The script with which a worker takes several messages of its queue in one round trip."""

import redis

from scheduler.view.connection import load_script

FIRST, SECOND, THIRD = (f'{{"headers": {{"task": "submit", "id": {number}}}}}'.encode() for number in range(3))


def take(client: redis.Redis, most: int = 10, longest: int = 100) -> list[bytes]:
    found = load_script(client, "take_messages")(keys=["reservations"], args=[most, longest, "renew", "submit"])
    return list(found)


def test_the_oldest_messages_are_taken_first_and_the_rest_stays(redis_client: redis.Redis) -> None:
    redis_client.lpush("reservations", FIRST, SECOND, THIRD)
    assert take(redis_client, most=2) == [FIRST, SECOND]
    assert redis_client.lrange("reservations", 0, -1) == [THIRD]
    assert take(redis_client, most=2) == [THIRD]
    assert take(redis_client, most=2) == []


def test_a_long_message_ends_the_list_and_stays(redis_client: redis.Redis) -> None:
    redis_client.lpush("reservations", FIRST, FIRST + b" " * 100, THIRD)
    assert take(redis_client) == [FIRST]
    assert redis_client.llen("reservations") == 2


def test_a_message_of_another_task_ends_the_list_and_stays(redis_client: redis.Redis) -> None:
    """A worker holds few of them, so that they reach a process of any worker soon."""
    redis_client.lpush("reservations", FIRST, FIRST.replace(b"submit", b"explain"), THIRD)
    assert take(redis_client) == [FIRST]
    assert redis_client.llen("reservations") == 2
