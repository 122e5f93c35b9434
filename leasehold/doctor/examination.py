"""Observe the parts of an installation, and run all checks of `leasehold doctor` one after the other. Each check has a
time limit, which also holds if a host or a name server does not answer.

The parts are the Redis servers, their queues and the clocks of the processes that publish their offsets there, the
database, Celery, Flower, the console, and the time of the last tick. leasehold/doctor/cloud.py observes AWS.
"""

import ipaddress
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from importlib.metadata import version
from queue import Empty, SimpleQueue
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import redis
from redis.exceptions import NoPermissionError, ResponseError

from leasehold.canaries import Canaries, Probe
from leasehold.client.discovery import find_running
from leasehold.client.redis.connection import explain_redis
from leasehold.client.redis.own_transport import open_wire
from leasehold.doctor.cloud import Ability, look_at_cloud
from leasehold.doctor.rules import (
    HOSTS,
    MACHINES,
    Finding,
    failure,
    judge_access,
    judge_celery,
    judge_clock,
    judge_clocks,
    judge_console,
    judge_flower,
    judge_hosts,
    judge_machines,
    judge_membership,
    judge_memory,
    judge_persistence,
    judge_queue,
    judge_redis_version,
    judge_rules,
    judge_schema,
    judge_ticks,
    judge_unread,
    ok,
    skipped,
    warning,
)
from leasehold.errors import LeaseholdError, Unavailable, UntrustedFolder
from leasehold.web.ways_in import find_refusal, has_way_in
from scheduler.model.validation import InvalidInputError
from scheduler.operations.commands.slot_commands import REGISTER_REFUSED
from scheduler.operations.machines.joining import JOIN_REFUSED
from scheduler.ports import (
    EventFilter,
    NotPermittedError,
    StaleWriteError,
    StandbyError,
    Store,
    StoreUnavailableError,
    ViewUnavailableError,
)
from scheduler.protocol.loopback import is_loopback
from scheduler.protocol.masking import show_url
from scheduler.protocol.names import QUEUE_NAMES, RedisNames
from scheduler.protocol.report import read_report
from scheduler.store.migrating import schema_state
from scheduler.store.opening import open_store, try_write
from scheduler.view.connection import make_redis
from scheduler.view.redis_clock import RedisClock
from scheduler.view.redis_ports import RedisRecord
from workers.clock_watch import ClockWatch
from workers.configuration import Configuration, find_configuration
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
            info = _read_info(client)
            judged = (("version", judge_redis_version), ("memory", judge_memory), ("persistence", judge_persistence))
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
            if isinstance(error.__cause__, ResponseError) and not isinstance(error.__cause__, NoPermissionError):
                remedy = "Let Redis take writes: as a primary with memory left (`INFO replication`, `INFO memory`)."
            else:
                remedy = "Let this user push to the queues."
            yield from (failure(f"queue {queue}", str(error), remedy) for queue in QUEUE_NAMES)
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


DATABASE, SCHEMA, WRITES, CLOCK, RULES = "database", "schema", "database writes", "database clock", "rules"
MEMBERSHIP = "cluster"
REDIS_SECONDS: Final = 3.0
MOST_REFUSALS: Final = 1000
_NO_STANDBY: Final = (
    "Promote the standby, or let database.url (LEASEHOLD_DATABASE__URL) lead to the primary: it may name all hosts"
    " (postgresql://USER@HOST1,HOST2/NAME). Processes connect again by themselves."
)


def look_at_database(configuration: Configuration, *, tries_write: bool = True) -> Iterator[Finding]:
    """Yield the findings on the database: whether it answers, its schema, clock and cluster, writes, the rules in
    force, the machines that EC2 refuses to end, and the identities of static hosts. `tries_write`: whether to write a
    row and delete it.
    """
    url = configuration.settings.database_url
    try:
        state = schema_state(url)
    except (StoreUnavailableError, InvalidInputError) as error:
        remedy = "Start the database, free space on its disk, or correct database.url (LEASEHOLD_DATABASE__URL)."
        if isinstance(error, StandbyError):
            remedy = _NO_STANDBY
        yield failure(DATABASE, f"the database at {show_url(url)} cannot be used: {error}", remedy)
        yield from (
            skipped(check, "the database cannot be reached")
            for check in (SCHEMA, WRITES, CLOCK, MEMBERSHIP, RULES, MACHINES, HOSTS)
        )
        return
    yield ok(DATABASE, f"{show_url(url)} answers")
    yield judge_schema(state.current, state.head)
    with closing(open_store(url)) as store:
        if not state.is_current:
            yield from (
                skipped(check, "this program needs another schema")
                for check in (CLOCK, MEMBERSHIP, WRITES, RULES, MACHINES, HOSTS)
            )
            return
        yield _look_at_database_clock(store)
        yield _look_at_membership(store, configuration)
        if tries_write:
            yield _look_at_writes(url)
        yield _look_at_rules(store, configuration)
        yield _look_at_machines(store)
        yield _look_at_hosts(store)


def _look_at_database_clock(store: Store) -> Finding:
    try:
        return judge_clock(CLOCK, 0.0 - store.read_cluster().reference_offset, 0.0, "its")
    except StoreUnavailableError as error:
        return failure(CLOCK, str(error), "Look for the cause in the database's log.")


def _look_at_membership(store: Store, configuration: Configuration) -> Finding:
    """Return the finding on whether database and Redis belong to the same cluster. The check only reads: if Redis is
    empty, it does not record the cluster there.
    """
    url, prefix = configuration.settings.view_url, configuration.settings.view.prefix
    if url is None:
        return skipped(MEMBERSHIP, "there is no Redis to compare the database with")
    try:
        with make_redis(url, socket_seconds=REDIS_SECONDS, connect_seconds=REDIS_SECONDS) as client:
            remembered = RedisRecord(client, prefix).read()
        return judge_membership(store.read_cluster(), remembered)
    except (ViewUnavailableError, StoreUnavailableError) as error:
        return skipped(MEMBERSHIP, str(error))


def _look_at_writes(url: str) -> Finding:
    try:
        try_write(url)
    except NotPermittedError as error:
        return warning(
            WRITES, f"could not be tried as this user: {error}", "Run the doctor as the user of the workers."
        )
    except (StoreUnavailableError, StaleWriteError) as error:
        remedy = (
            "Free space on the database's disk, or make the database writable:"
            " until then no tick is committed and no request is answered."
        )
        return failure(WRITES, str(error), _NO_STANDBY if isinstance(error, StandbyError) else remedy)
    return ok(WRITES, "a row was written, committed and deleted")


def _look_at_rules(store: Store, configuration: Configuration) -> Finding:
    file = find_configuration()
    try:
        stored = store.load_rules()
    except (StoreUnavailableError, InvalidInputError) as error:
        return failure(RULES, str(error), "Apply rules that this version understands: `leasehold apply FILE`.")
    return judge_rules(stored.version, stored.document, str(file) if file else None, dict(configuration.rules_document))


def _look_at_machines(store: Store) -> Finding:
    try:
        return judge_machines(store.find_slots(states=["terminating", "stopped"]), store.find_holds())
    except StoreUnavailableError as error:
        return skipped(MACHINES, str(error))


def _look_at_hosts(store: Store) -> Finding:
    try:
        names = (REGISTER_REFUSED, JOIN_REFUSED)
        wanted = (EventFilter(name=name, newest=True, limit=MOST_REFUSALS) for name in names)
        return judge_hosts([event for each in wanted for event in store.read_events(each)], store.now())
    except StoreUnavailableError as error:
        return skipped(HOSTS, str(error))


def read_tick_age(url: str) -> float | None:
    """Return the seconds since a tick was last committed, by the leader's row in the database; None before the first
    tick.

    Raises StoreUnavailableError if the database does not answer, InvalidInputError if its URL is wrong.
    """
    with closing(open_store(url)) as store:
        ticked_at = store.load_leader_term().ticked_at
        return store.now() - ticked_at if ticked_at else None


def look_at_programs(settings: Settings) -> Iterator[Finding]:
    """Yield the findings on Celery, Flower and the console, with the settings and versions with which this host would
    run them.
    """
    from tasks.app import make_app  # noqa: PLC0415 - the import takes a second; other checks need not wait for it

    yield judge_celery(make_app(settings).conf, version("celery"), version("kombu"))
    flower = settings.flower
    yield judge_flower(
        has_password=flower.basic_auth is not None,
        on_loopback=is_loopback(flower.host),
        is_local_stack=_is_local_stack(),
    )
    networks = map(ipaddress.ip_network, settings.console.trusted_proxies or ())
    yield judge_console(
        refusal=find_refusal(settings, local=_is_local_stack()),
        has_way_in=is_loopback(settings.console.host) or _has_way_in(settings),
        trusts_loopback=any(network.is_loopback for network in networks),
    )


def _has_way_in(settings: Settings) -> bool:
    try:
        with closing(open_store(settings.database_url)) as store:
            return has_way_in(settings, store)
    except InvalidInputError:
        # Another check reports a wrong URL of the database.
        return True


def _is_local_stack() -> bool:
    try:
        return find_running() is not None
    except UntrustedFolder:
        return False


def look_at_ticks(settings: Settings, seconds: float, *, can_write: bool) -> Iterator[Finding]:
    """Yield one finding on the age of the last tick. The view and the database each record the last tick; the later
    record counts.

    `seconds`: time limit for an answer of Redis. `can_write`: False if another check found that the database cannot be
    used or accepts no writes.
    """
    known: list[float | None] = []
    with suppress(LeaseholdError):
        known.append(read_report_age(settings, seconds))
    with suppress(StoreUnavailableError, InvalidInputError):
        known.append(read_tick_age(settings.database_url))
    if not known:
        yield skipped("ticks", "neither Redis nor the database can be read")
        return
    age = min((each for each in known if each is not None), default=None)
    yield judge_ticks(age, settings.ticks.interval, can_write=can_write)


GRACE_SECONDS: Final = 2.0
"""Seconds that each check gets in addition to its time limit, for imports and connections."""

Look = Callable[[], Iterator[Finding]]


def examine(configuration: Configuration, seconds: float, abilities: Collection[Ability]) -> Iterator[Finding]:
    """Run all checks and yield each finding as soon as it is known.

    `seconds`: how long each part of the installation may take to answer. `abilities`: the permissions to try at AWS;
    empty: AWS is not checked.
    """
    settings = configuration.settings
    works = True
    for finding in _look_at_servers(configuration, seconds):
        works = works and not (finding.check == "redis" and finding.outcome == "failure")
        yield finding
    if works and settings.broker_url:
        yield from run_bounded("queues", lambda: look_at_queues(settings, seconds), 2 * seconds)
        yield from run_bounded("clocks", lambda: look_at_clocks(settings, seconds), 2 * seconds)
    else:
        yield from (
            skipped(check, "there is no Redis") for check in (*(f"queue {queue}" for queue in QUEUE_NAMES), "clocks")
        )
    can_write = True
    for finding in run_bounded("database", lambda: look_at_database(configuration), 2 * seconds):
        can_write = can_write and not (finding.check in {DATABASE, WRITES} and finding.outcome == "failure")
        yield finding
    yield from run_bounded("ticks", lambda: look_at_ticks(settings, seconds, can_write=can_write), 2 * seconds)
    yield from run_bounded("celery", lambda: look_at_programs(settings), 2 * seconds)
    if abilities:
        look: Look = lambda: look_at_cloud(configuration, abilities, seconds)  # noqa: E731 - its type is worth a name
        yield from run_bounded("aws", look, 4 * seconds)
    else:
        yield skipped("aws", "the permissions in AWS are not checked: no ability was requested")


def examine_by_reading(configuration: Configuration, seconds: float) -> Iterator[Finding]:
    """Run the checks that write nothing and send nothing, and yield each finding: those of a process that only reads,
    such as the console. `seconds`: as for `examine`.
    """
    settings = configuration.settings
    yield from _look_at_servers(configuration, seconds)
    yield from run_bounded("clocks", lambda: look_at_clocks(settings, seconds), 2 * seconds)
    look: Look = lambda: look_at_database(configuration, tries_write=False)  # noqa: E731 - its type is worth a name
    yield from run_bounded("database", look, 2 * seconds)
    yield from run_bounded("ticks", lambda: look_at_ticks(settings, seconds, can_write=True), 2 * seconds)


def _look_at_servers(configuration: Configuration, seconds: float) -> Iterator[Finding]:
    broker, view = configuration.settings.broker_url, configuration.settings.view_url
    if broker is None:
        yield failure(
            "redis",
            "broker.url is not set, and no stack runs here",
            "Start a stack (`leasehold up`), or set broker.url (LEASEHOLD_BROKER__URL).",
        )
        return
    with open_clock(configuration.settings, seconds) as now:
        yield from run_bounded("redis", lambda: look_at_redis("redis", broker, seconds, now), 3 * seconds)
        if view is not None and view != broker:
            yield from run_bounded("view", lambda: look_at_redis("view", view, seconds, now), 3 * seconds)


def run_bounded(name: str, look: Look, seconds: float) -> Iterator[Finding]:
    """Run the check `look` in a thread and yield its findings. If the check yields none and does not end within
    `seconds` + GRACE_SECONDS, yield a failure with the name `name` and return. An error of the check is raised.

    A check that is late continues in its daemon thread, because a thread cannot be stopped.
    """
    found: SimpleQueue[Finding | Exception | None] = SimpleQueue()
    threading.Thread(target=_run, args=(look, found), name=f"doctor-{name}", daemon=True).start()
    until = time.monotonic() + seconds + GRACE_SECONDS
    while True:
        try:
            item = found.get(timeout=max(until - time.monotonic(), 0.01))
        except Empty:
            yield failure(name, f"no answer in {seconds:g} s", "Check the network, or allow more time with --timeout.")
            return
        if item is None:
            return
        if isinstance(item, Exception):
            raise item
        yield item
        until = time.monotonic() + seconds + GRACE_SECONDS


def _run(look: Look, found: "SimpleQueue[Finding | Exception | None]") -> None:
    try:
        for finding in look():
            found.put(finding)
    except Exception as error:  # noqa: BLE001 - the waiting thread raises it
        found.put(error)
    finally:
        found.put(None)
