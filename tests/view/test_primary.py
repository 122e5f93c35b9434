"""Connections leave a server that is no longer the primary behind their URL."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from leasehold import Client, Unavailable
from scheduler.protocol.names import RedisNames
from scheduler.protocol.redis_primary import count_left
from scheduler.view.connection import make_redis
from scheduler.view.redis_view_cache import RedisViewCache
from tasks.app import make_app
from testbed.processes import wait_for
from testbed.redis_pair import RedisPair
from tests.builders import a_slot
from workers.settings import read_settings


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[RedisPair]:
    with RedisPair(tmp_path) as found:
        found.await_link()
        yield found


def test_a_write_that_a_replica_refuses_is_sent_to_the_primary(pair: RedisPair) -> None:
    with make_redis(pair.url) as client:
        client.set("key", 1)
        pair.switch()
        client.set("key", 2)
        with make_redis(pair.primary.url) as direct:
            assert direct.get("key") == b"2"


def test_a_reader_leaves_a_replica_also_if_that_answers(pair: RedisPair) -> None:
    with make_redis(pair.url) as client:
        client.set("key", "old")
        pair.await_link()
        pair.switch(is_linked=False)
        with make_redis(pair.primary.url) as direct:
            direct.set("key", "new")
        wait_for(lambda: client.get("key") == b"new", "the value of the primary")
        assert count_left(client) == 1


def test_a_reader_leaves_a_server_that_has_had_no_valid_view_for_some_time(pair: RedisPair) -> None:
    """The old server is alone and still a primary, as after a change of the address only."""
    with make_redis(pair.url) as client, make_redis(pair.url) as publisher:
        cache = RedisViewCache(client)
        RedisViewCache(publisher).rebuild([])
        assert cache.load() is not None
        pair.switch(is_demoted=False)
        with make_redis(pair.replica.url) as old, make_redis(pair.url) as leader:
            old.flushall()
            RedisViewCache(leader).rebuild([a_slot("linux-1")])
        wait_for(lambda: (view := cache.catch_up() or cache.load()) and view.slots, "the view of the new server")


def test_a_subscription_follows_to_the_primary(pair: RedisPair) -> None:
    with Client(pair.url) as client, client.watch("r1") as watch:

        def read_and_publish(publisher: redis.Redis) -> bool:
            # Any use of the client finds that the server is a replica.
            with suppress(Unavailable):
                watch.read()
            return bool(publisher.publish(RedisNames().notice("r1"), "{}"))

        for is_switched in (False, True):
            if is_switched:
                pair.switch(is_linked=False)
            with make_redis(pair.url) as publisher:
                wait_for(lambda: read_and_publish(publisher), "a subscription")


def test_a_publisher_of_messages_leaves_a_replica(pair: RedisPair) -> None:
    app = make_app(read_settings({"broker": {"url": pair.url}}))
    app.send_task("leasehold.ticks.tick")
    pair.await_link()
    pair.switch()
    app.send_task("leasehold.ticks.tick")
    with make_redis(pair.primary.url) as direct:
        assert direct.llen("ticks") == 2
