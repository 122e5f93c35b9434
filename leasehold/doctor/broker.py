"""Observe the Redis servers, the queues in Redis, and the wall clocks of the processes that publish their clock offsets
there.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import redis
from redis.exceptions import NoPermissionError

from leasehold.canaries import Canaries, Probe
from leasehold.client.redis.connection import explain_redis
from leasehold.client.redis.own_transport import open_wire
from leasehold.doctor.rules import (
    Finding,
    failure,
    judge_access,
    judge_clock,
    judge_clocks,
    judge_memory,
    judge_persistence,
    judge_queue,
    judge_redis_version,
    judge_unread,
    ok,
    skipped,
)
from leasehold.errors import LeaseholdError, Unavailable
from scheduler.ports import ViewUnavailableError
from scheduler.protocol.masking import show_url
from scheduler.protocol.names import QUEUE_NAMES, RedisNames
from scheduler.protocol.report import read_report
from scheduler.view.connection import make_redis
from scheduler.view.redis_clock import RedisClock
from workers.clock_watch import ClockWatch
from workers.settings import Settings

ASPECTS: Final = ("version", "memory", "persistence", "access", "clock")
ASKED: Final = {
    "version": "is redis_version 6.2 or newer (`INFO server`)",
    "memory": "is maxmemory-policy noeviction (`INFO memory`)",
    "persistence": "did the last save succeed (`INFO persistence`)",
    "clock": "is its clock right (`TIME`)",
}
"""Checked aspect of Redis, like `memory` -> the question that an administrator has to answer if Redis refuses this user
the command that reads the aspect.
"""


def look_at_redis(name: str, url: str, seconds: float, now: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Yield the findings on the Redis server at `url`: whether it answers, whether it is configured as a broker should
    be, and whether its clock agrees with cluster time (`now`).

    `name` begins the name of each check: "redis" or "view". `seconds`: time limit of each command.
    """
    with make_redis(url, socket_seconds=seconds, connect_seconds=seconds) as client:
        try:
            client.ping()
        except redis.RedisError as error:
            yield failure(
                name,
                str(explain_redis(error, url, "use it")),
                "Start Redis, or correct broker.url (LEASEHOLD_BROKER__URL) or view.url.",
            )
            yield from (skipped(f"{name} {aspect}", f"{name} cannot be reached") for aspect in ASPECTS)
            return
        yield ok(name, f"{show_url(url)} answers")
        try:
            user = client.connection_pool.connection_kwargs.get("username") or "default"
            judged = (("version", judge_redis_version), ("memory", judge_memory), ("persistence", judge_persistence))
            info = _read_info(client)
            for aspect, judge in judged:
                check = f"{name} {aspect}"
                yield judge_unread(check, user, "INFO", ASKED[aspect]) if info is None else judge(check, info)
            needs_none = _needs_no_password(url, client)
            yield judge_access(
                f"{name} access", user, _read_bind(client) if needs_none else None, needs_none=needs_none
            )
            yield _look_at_clock(f"{name} clock", client, user, now)
        except redis.RedisError as error:
            yield failure(f"{name} {ASPECTS[0]}", str(error), "Look for the cause in Redis' log.")


def _look_at_clock(check: str, client: redis.Redis, user: str, now: Callable[[], float]) -> Finding:
    before = now()
    try:
        seconds, microseconds = client.time()
    except NoPermissionError:
        return judge_unread(check, user, "TIME", ASKED["clock"])
    after = now()
    return judge_clock(check, seconds + microseconds / 1e6 - (before + after) / 2, (after - before) / 2, "its")


def _read_info(client: redis.Redis) -> dict[str, Any] | None:
    """Return the answer of Redis to the command INFO; None if this user may not use the command."""
    with suppress(NoPermissionError):
        info: dict[str, Any] = client.info()
        return info
    return None


def _needs_no_password(url: str, client: redis.Redis) -> bool:
    """Return whether the server accepts a connection without user and password. Every user may try such a
    connection.
    """
    parts = urlsplit(url)
    query = urlencode([each for each in parse_qsl(parts.query) if each[0] not in {"username", "password"}])
    without_user = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=query))
    seconds = client.connection_pool.connection_kwargs["socket_timeout"]
    with make_redis(without_user, socket_seconds=seconds, connect_seconds=seconds) as anonymous:
        try:
            anonymous.ping()
        except (redis.AuthenticationError, redis.ResponseError):
            return False
    return True


def _read_bind(client: redis.Redis) -> str | None:
    """Return the addresses on which Redis listens, separated by spaces; None if this user may not read them.

    Managed services refuse the command CONFIG, and so do the users of compose/redis/users.acl.
    """
    with suppress(redis.ResponseError):
        found: dict[Any, Any] = client.config_get("bind")
        return next((value.decode() if isinstance(value, bytes) else str(value) for value in found.values()), "")
    return None


def look_at_clocks(settings: Settings, seconds: float) -> Iterator[Finding]:
    """Yield one finding on the wall clocks of this command and of all processes of the stack. Each process measures its
    own clock and publishes the result in Redis.
    """
    with make_redis(settings.view_url or "", socket_seconds=seconds, connect_seconds=seconds) as client:
        clock = RedisClock(client, settings.view.prefix)
        clock.look()
        try:
            yield judge_clocks(ClockWatch(client, settings.view.prefix, clock, "this command").read())
        except ViewUnavailableError as error:
            yield skipped("clocks", str(error))


@contextmanager
def open_clock(settings: Settings, seconds: float) -> Iterator[Callable[[], float]]:
    """Yield a function that returns the present time: cluster time by the view's Redis, or the wall clock of this host
    if no Redis is configured or that Redis does not answer within `seconds`.
    """
    url = settings.view_url
    if url is None:
        yield time.time
        return
    with make_redis(url, socket_seconds=seconds, connect_seconds=seconds) as client:
        yield RedisClock(client, settings.view.prefix).look


def look_at_queues(settings: Settings, seconds: float) -> Iterator[Finding]:
    """Send a canary (a test message) to each queue, and yield for each queue the finding on whether a worker answered
    within `seconds`.
    """
    with closing(open_wire(settings)) as wire:
        canaries, probe = Canaries(wire), Probe(wire)
        try:
            lengths = probe.queue_lengths()
            canaries.send(expires=seconds)
        except LeaseholdError as error:
            yield from (
                failure(f"queue {queue}", str(error), "Let this user push to the queues.") for queue in QUEUE_NAMES
            )
            return
        took = canaries.wait(seconds)
        yield from (judge_queue(queue, lengths[queue], took.get(queue), seconds) for queue in QUEUE_NAMES)


def read_report_age(settings: Settings, seconds: float) -> float | None:
    """Return the seconds since the last tick ended, by the tick's report in the view; None before the first tick.

    Raises LeaseholdError if no Redis is configured or Redis does not answer.
    """
    url = settings.view_url
    if url is None:
        raise Unavailable("broker.url is not set")
    with make_redis(url, socket_seconds=seconds, connect_seconds=seconds) as client:
        try:
            at = read_report(client, RedisNames(settings.view.prefix)).get("at")
        except redis.RedisError as error:
            raise explain_redis(error, url, "read the view") from error
        return RedisClock(client, settings.view.prefix).look() - at if isinstance(at, int | float) else None
