"""The feed of the console: no gap, one encoding for all streams, and no harm by a lost Redis."""

import asyncio
import json
from collections.abc import AsyncIterator

import msgspec
import redis

from leasehold.web.feed import EMIT_SECONDS, Changed, Feed, FollowedView
from leasehold.web.server_sent import MOST_WAITING, Subscriber, encode_event
from scheduler.model.view import Gone
from scheduler.view.redis_view_cache import RedisViewCache
from tests.builders import a_lease, a_reservation, a_slot


def make_feed(client: redis.Redis) -> Feed:
    return Feed(RedisViewCache(client, make_view=lambda: FollowedView(600.0)))


async def next_event(stream: AsyncIterator[bytes], name: str) -> dict[str, object]:
    async with asyncio.timeout(20):
        async for block in stream:
            head, _, data = block.decode().partition("\ndata: ")
            if head == f"event: {name}":
                found: dict[str, object] = json.loads(data)
                return found
    raise AssertionError(name)


def test_a_topic_is_encoded_once_for_all_its_streams_and_names_every_change(redis_client: redis.Redis) -> None:
    publisher, feed = RedisViewCache(redis_client), make_feed(redis_client)
    publisher.rebuild([a_slot("linux-1")])
    seen: list[Changed] = []

    def encode(changed: Changed) -> bytes:
        seen.append(changed)
        return encode_event("slots", {"ids": sorted(changed.of("slots")), "since": changed.since})

    feed.topic("slots", encode)

    async def play() -> None:
        feed.start()
        await feed.refresh()
        streams = [feed.subscribe("slots") for _ in range(20)]
        for stream in streams:
            await next_event(stream, "hello")
        publisher.publish([a_slot("linux-1", version=2), a_slot("linux-2")])
        publisher.publish([a_reservation("r1", phase="leased", leases=(a_lease("linux-3"),))])
        named: set[str] = set()
        while named != {"linux-1", "linux-2", "linux-3"}:
            found = [await next_event(stream, "slots") for stream in streams]
            assert all(each == found[0] for each in found)
            named |= set(found[0]["ids"])  # type: ignore[call-overload]
        for stream in streams:
            await stream.aclose()  # type: ignore[attr-defined]

    try:
        asyncio.run(play())
    finally:
        feed.stop()
    assert len(seen) <= 2
    assert [each.since for each in seen[1:]] == [each.revision for each in seen[:-1]]


def test_a_refresh_shows_what_was_published_before_it(redis_client: redis.Redis) -> None:
    publisher, feed = RedisViewCache(redis_client), make_feed(redis_client)
    publisher.rebuild([])

    async def play() -> None:
        feed.start()
        for version in range(1, 20):
            publisher.publish([a_slot("linux-1", version=version)])
            await feed.refresh()
            assert feed.view.slots["linux-1"].version == version

    try:
        asyncio.run(play())
    finally:
        feed.stop()
    assert feed.view.slots["linux-1"].version == 19


def test_a_lost_view_is_reported_and_comes_back_by_itself(redis_client: redis.Redis) -> None:
    publisher, feed = RedisViewCache(redis_client), make_feed(redis_client)
    publisher.rebuild([a_slot("linux-1")])

    async def play() -> None:
        feed.start()
        await feed.refresh()
        stream = feed.subscribe()
        assert (await next_event(stream, "hello"))["valid"] is True
        redis_client.flushall()
        assert (await next_event(stream, "status"))["valid"] is False
        # What was known stays readable.
        assert set(feed.view.slots) == {"linux-1"}
        publisher.rebuild([a_slot("linux-2")])
        assert (await next_event(stream, "status"))["valid"] is True
        assert set(feed.view.slots) == {"linux-2"}
        feed.note_database(is_lost=True)
        assert (await next_event(stream, "status"))["database"] is False

    try:
        asyncio.run(play())
    finally:
        feed.stop()


def test_a_reader_that_cannot_keep_up_is_cut_off() -> None:
    async def play() -> int:
        subscriber = Subscriber(asyncio.get_running_loop())
        for _ in range(MOST_WAITING + 10):
            subscriber.put(b"x")
        async with asyncio.timeout(20):
            return len([block async for block in subscriber.read(5.0, b"")])

    assert asyncio.run(play()) == MOST_WAITING


def test_the_view_of_the_feed_keeps_ended_reservations_for_a_while() -> None:
    view = FollowedView(600.0)
    for number in range(3):
        view.apply(a_reservation(f"r{number}", phase="released", version=2, marked_at=1000.0 + 300 * number))
    assert list(view.ended) == ["r0", "r1", "r2"]
    view.apply(a_reservation("r3", phase="released", version=2, marked_at=1650.0))
    assert list(view.ended) == ["r1", "r2", "r3"]
    view.apply(Gone("reservations", "r2", 3))
    assert list(view.ended) == ["r1", "r3"]


def test_a_slot_counts_as_changed_when_a_lease_on_it_changes() -> None:
    view = FollowedView(600.0)
    view.apply(a_slot("linux-1"))
    view.apply(a_slot("linux-2"))
    row = a_reservation("r1", phase="leased", version=1, leases=(a_lease("linux-1"),))
    view.apply(row)
    view.take_changed()
    view.apply(msgspec.structs.replace(row, version=2, leases=(a_lease("linux-2"),)))
    assert view.take_changed() == {"reservations": {"r1"}, "slots": {"linux-1", "linux-2"}}
    assert view.take_changed() == {}
    assert EMIT_SECONDS >= 0.5
