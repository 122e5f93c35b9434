"""The script with which a worker takes several messages of its queue in one round trip."""

import redis

from scheduler.view.connection import load_script


def take(client: redis.Redis, most: int, longest: int) -> list[bytes]:
    return list(load_script(client, "take_messages")(keys=["reservations"], args=[most, longest]))


def test_the_oldest_messages_are_taken_first_and_the_rest_stays(redis_client: redis.Redis) -> None:
    redis_client.lpush("reservations", "m1", "m2", "m3")
    assert take(redis_client, 2, 100) == [b"m1", b"m2"]
    assert redis_client.lrange("reservations", 0, -1) == [b"m3"]
    assert take(redis_client, 2, 100) == [b"m3"]
    assert take(redis_client, 2, 100) == []


def test_a_long_message_ends_the_list_and_stays(redis_client: redis.Redis) -> None:
    redis_client.lpush("reservations", "m1", "a long message", "m3")
    assert take(redis_client, 10, 5) == [b"m1"]
    assert redis_client.llen("reservations") == 2
