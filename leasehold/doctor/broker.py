"""Looks at Redis, and through it at the queues."""

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any, Final
from urllib.parse import urlsplit

import redis

from leasehold.doctor.findings import Finding, failure, ok, skipped
from leasehold.doctor.judging import (
    judge_access,
    judge_clock,
    judge_memory,
    judge_persistence,
    judge_queue,
    judge_redis_version,
)
from leasehold.errors import LeaseholdError, Unavailable
from leasehold.probing import QUEUES, Canaries, Probe
from leasehold.reading import ViewReader
from leasehold.wire import Wire, show_url
from scheduler.view.connection import make_redis
from workers.settings import Settings

ASPECTS: Final = ("version", "memory", "persistence", "access", "clock")


def look_at_redis(name: str, url: str, seconds: float) -> Iterator[Finding]:
    """The server at this URL: does it answer, is it set up for a broker, does its clock agree with ours."""
    with make_redis(url, socket_seconds=seconds, connect_seconds=seconds) as client:
        try:
            client.ping()
        except redis.RedisError as error:
            remedy = "Start Redis, or correct broker.url (LEASEHOLD_BROKER__URL) or view.url."
            yield failure(name, f"{show_url(url)} cannot be reached: {error}", remedy)
            yield from (skipped(f"{name} {aspect}", f"{name} cannot be reached") for aspect in ASPECTS)
            return
        yield ok(name, f"{show_url(url)} answers")
        try:
            yield from _look_inside(name, client, urlsplit(url).username or "default")
        except redis.RedisError as error:
            yield failure(f"{name} {ASPECTS[0]}", str(error), "Let this user use INFO and TIME.")


def _look_inside(name: str, client: redis.Redis, user: str) -> Iterator[Finding]:
    info: dict[str, Any] = client.info()
    yield judge_redis_version(f"{name} version", info)
    yield judge_memory(f"{name} memory", info)
    yield judge_persistence(f"{name} persistence", info)
    yield judge_access(f"{name} access", user, _read_config(client))
    before = time.time()
    seconds, microseconds = client.time()
    after = time.time()
    ahead = seconds + microseconds / 1e6 - (before + after) / 2
    yield judge_clock(f"{name} clock", ahead, (after - before) / 2, "its")


def _read_config(client: redis.Redis) -> dict[str, str] | None:
    """None where it is not ours to read: managed services hide it, and so may our own ACL."""
    with suppress(redis.ResponseError):
        # One name a call: Redis 6.2 takes no more.
        found: dict[Any, Any] = client.config_get("bind") | client.config_get("requirepass")
        return {_text(key): _text(value) for key, value in found.items()}
    return None


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def look_at_queues(settings: Settings, seconds: float) -> Iterator[Finding]:
    """Each queue by a canary, which the worker that consumes it has to answer."""
    with closing(Wire(settings.broker_url or "", settings.view.prefix, settings.view_url)) as wire:
        canaries, probe, started = Canaries(wire), Probe(wire), time.monotonic()
        try:
            lengths = probe.queue_lengths()
            canaries.send(expires=seconds)
        except LeaseholdError as error:
            yield from (failure(f"queue {queue}", str(error), "Let this user push to the queues.") for queue in QUEUES)
            return
        took = _await(wire, canaries, started, seconds)
        yield from (judge_queue(queue, lengths[queue], took.get(queue), seconds) for queue in QUEUES)


def _await(wire: Wire, canaries: Canaries, started: float, seconds: float) -> dict[str, float]:
    took: dict[str, float] = {}
    while len(took) < len(QUEUES) and time.monotonic() - started < seconds:
        for queue in QUEUES:
            if queue not in took and canaries.answered(queue):
                took[queue] = time.monotonic() - started
        if len(took) < len(QUEUES):
            wire.pause()
    return took


def read_last_report(settings: Settings, seconds: float) -> float | None:
    """When the last tick ended, by the view's report; None before the first. Raises LeaseholdError without a Redis."""
    url = settings.view_url
    if url is None:
        raise Unavailable("broker.url is not set")
    with make_redis(url, socket_seconds=seconds, connect_seconds=seconds) as client:
        at = ViewReader(client, settings.view.prefix, url).read_report().get("at")
    return float(at) if isinstance(at, int | float) else None
