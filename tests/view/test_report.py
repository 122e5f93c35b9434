"""The report of a tick in Redis: the waiting reservations are written in blocks, and only what changed is sent."""

import random

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.history import Sample
from scheduler.model.waits import MOST_NAMES, Reason, Waits
from scheduler.protocol.names import RedisNames
from scheduler.protocol.report import read_report
from scheduler.view.redis_view_cache import BlockChange, RedisViewCache, WaitBlocks

NO_CAPACITY: Reason = ("no_capacity", "no slot is free")
BOOTING: Reason = ("booting", "waits for linux-1")


def waits_of(names: list[str], booting: frozenset[str] = frozenset()) -> Waits:
    return Waits(names, [BOOTING if name in booting else NO_CAPACITY for name in names])


def read(client: redis.Redis) -> dict[str, list[str]]:
    """Return the waiting reservations as a client reads them, in order."""
    found: dict[str, list[str]] = read_report(client, RedisNames())["waiting"]
    return found


def shown(waits: Waits) -> dict[str, list[str]]:
    return {name: list(reason) for name, reason in waits.items()}


def size_of(change: BlockChange) -> int:
    return sum(map(len, change.added.values()))


@given(st.integers(0, 2**32), st.lists(st.sampled_from(["arrive", "leave", "boot", "sort", "nothing"]), max_size=8))
def test_the_blocks_always_contain_the_waiting_reservations(seed: int, steps: list[str]) -> None:
    draw = random.Random(seed)
    names = [f"r{number}" for number in range(draw.choice([0, 1, 127, 128, 129, 500]))]
    blocks, stored, fresh = WaitBlocks(), dict[str, bytes](), iter(range(10**6, 10**7))
    booting: frozenset[str] = frozenset()
    for step in ["nothing", *steps]:
        match step:
            case "arrive":
                for _ in range(draw.randrange(1, 300)):
                    names.insert(draw.choice([len(names), draw.randint(0, len(names))]), f"r{next(fresh)}")
            case "leave":
                names = [name for name in names if draw.random() < 0.9]
            case "boot":
                booting = frozenset(name for name in names if draw.random() < 0.1)
            case "sort":
                draw.shuffle(names)
            case _:
                pass
        change = blocks.follow(waits_of(names, booting))
        stored = {**({} if change.is_whole else stored), **change.added}
        for field in change.removed:
            del stored[field]
        assert stored.keys() == set(change.fields)
        assert sum(len(field) for field in change.fields) <= 40 * (8 + 4 * len(names) / MOST_NAMES)


def test_a_change_at_both_ends_of_a_long_queue_sends_two_blocks() -> None:
    names = [f"r{number}" for number in range(20_000)]
    blocks = WaitBlocks()
    whole = blocks.follow(waits_of(names))
    change = blocks.follow(waits_of([*names[1:], "newest"]))
    assert len(change.removed) == 1
    assert len(change.added) <= 2
    assert size_of(change) * 50 < size_of(whole)
    assert blocks.follow(waits_of([*names[1:], "newest"])).added == {}


def test_a_reader_gets_the_order_and_the_reasons(redis_client: redis.Redis) -> None:
    leader = RedisViewCache(redis_client)
    names = [f"r{number}" for number in range(3 * MOST_NAMES)]
    waits = waits_of(names, frozenset(names[5:200:7]))
    leader.write_report({"term": 1}, waits)
    assert list(read(redis_client).items()) == list(shown(waits).items())
    waits = waits_of([*names[40:], *names[:10]])
    leader.write_report({"term": 1}, waits)
    assert list(read(redis_client).items()) == list(shown(waits).items())


@pytest.mark.parametrize("loss", ["flush", "waits deleted", "another leader"])
def test_blocks_that_redis_lost_are_written_again(redis_client: redis.Redis, loss: str) -> None:
    leader, names = RedisViewCache(redis_client), [f"r{number}" for number in range(2 * MOST_NAMES)]
    leader.write_report({"term": 1}, waits_of(names))
    match loss:
        case "flush":
            redis_client.flushdb()
        case "waits deleted":
            redis_client.delete(RedisNames().waits)
        case _:
            RedisViewCache(redis_client).write_report({"term": 2}, waits_of(["other"]))
    leader.write_report({"term": 1}, waits_of(names))
    assert list(read(redis_client)) == names


def test_the_report_of_an_older_version_is_read(redis_client: redis.Redis) -> None:
    redis_client.set(RedisNames().report, b'{"term": 1, "waiting": {"r1": ["booting", "soon"]}}')
    assert read(redis_client) == {"r1": ["booting", "soon"]}


def test_samples_of_the_history_that_cannot_be_read_are_left_out(redis_client: redis.Redis) -> None:
    cache, sample = RedisViewCache(redis_client), Sample(5.0, 1, 2.0, 0.5, 3)
    cache.write_sample(sample)
    redis_client.hset("leasehold:history", mapping={"7": "nonsense", "8": "[1]"})
    assert cache.read_history() == [sample]
    redis_client.set("leasehold:history", "no hash")
    cache.set_aside_wrong_keys()
    cache.write_sample(sample)
    assert cache.read_history() == [sample]
    redis_client.flushall()
    assert cache.read_history() == []
