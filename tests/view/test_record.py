"""The record in Redis: the identity of the cluster and its highest term and token."""

import pytest
import redis

from scheduler.ports import Remembered
from scheduler.view.connection import make_redis
from scheduler.view.redis_ports import RedisRecord
from testbed.servers import OpenRedis

LARGE = 2**53 - 1
ONE, TWO = "1" * 32, "2" * 32


@pytest.fixture
def client(redis_url: str, open_redis: OpenRedis) -> redis.Redis:
    return open_redis(redis_url)


@pytest.fixture
def record(client: redis.Redis) -> RedisRecord:
    return RedisRecord(client)


def test_an_empty_redis_remembers_nothing(record: RedisRecord) -> None:
    assert record.read() == Remembered()


def test_the_first_identity_stays(record: RedisRecord) -> None:
    assert record.keep(ONE, 3, 7) == ONE
    assert record.keep(TWO, 100, 100) == ONE
    assert record.read() == Remembered(identity=ONE, term=3, token=7)


def test_the_recorded_term_and_token_never_decrease(record: RedisRecord) -> None:
    for term, token in ((9, 10), (10, 9), (LARGE - 1, LARGE), (LARGE - 2, LARGE - 1)):
        record.keep(ONE, term, token)
    assert record.read() == Remembered(identity=ONE, term=LARGE - 1, token=LARGE)


def test_a_restore_is_marked_until_it_ends_and_its_numbers_replace_the_old_ones(record: RedisRecord) -> None:
    record.keep(ONE, 9, 9)
    record.begin_restore()
    assert record.read() == Remembered(identity=ONE, term=9, token=9, is_restoring=True)
    record.keep(ONE, 10, 10)
    assert record.read().is_restoring
    record.end_restore(TWO, 5, 6)
    assert record.read() == Remembered(identity=TWO, term=5, token=6)


def test_keys_of_a_wrong_type_count_as_missing_and_are_replaced(client: redis.Redis, record: RedisRecord) -> None:
    client.lpush("leasehold:cluster", "odd")
    client.set("leasehold:highest", "odd")
    assert record.read() == Remembered()
    assert record.keep(ONE, 3, 7) == ONE
    assert record.read() == Remembered(identity=ONE, term=3, token=7)
    client.set("leasehold:highest", "odd")
    record.begin_restore()
    assert record.read().is_restoring


def test_numbers_that_cannot_be_read_are_replaced(client: redis.Redis, record: RedisRecord) -> None:
    client.hset("leasehold:highest", mapping={"term": "many", "token": b"\xff"})
    record.keep(ONE, 3, 7)
    assert record.read() == Remembered(identity=ONE, term=3, token=7)


def test_each_prefix_has_its_own_record(redis_url: str) -> None:
    with make_redis(redis_url) as client:
        RedisRecord(client, "a:").keep(ONE, 1, 1)
        assert RedisRecord(client, "b:").keep(TWO, 1, 1) == TWO


@pytest.mark.parametrize(
    "text", [b"", b"garbage", b"\xff\xfe", ONE[:-1].encode(), f"{ONE}\n".encode(), ONE.upper().encode()[:-1] + b"G"]
)
def test_a_text_that_is_no_identity_counts_as_missing_and_is_replaced(
    client: redis.Redis, record: RedisRecord, text: bytes
) -> None:
    record.keep(TWO, 3, 7)
    client.set("leasehold:cluster", text)
    assert record.read() == Remembered(term=3, token=7)
    assert record.keep(ONE, 3, 7) == ONE
    assert record.read().identity == ONE
