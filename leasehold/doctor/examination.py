"""Run all checks of `leasehold doctor` one after the other. Each check has a time limit, which also holds if a host or
a name server does not answer. The checks of Celery's settings and versions, of the access to Flower and the console,
and of the time of the last tick stand here.
"""

import ipaddress
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, suppress
from importlib.metadata import version
from queue import Empty, SimpleQueue
from typing import Final

from leasehold.client.discovery import find_running
from leasehold.doctor.broker import look_at_clocks, look_at_queues, look_at_redis, open_clock, read_report_age
from leasehold.doctor.cloud import Ability, look_at_cloud
from leasehold.doctor.database import DATABASE, WRITES, look_at_database, read_tick_age
from leasehold.doctor.rules import Finding, failure, judge_celery, judge_console, judge_flower, judge_ticks, skipped
from leasehold.errors import LeaseholdError, UntrustedFolder
from leasehold.web.ways_in import find_refusal, has_way_in
from scheduler.model.validation import InvalidInputError
from scheduler.ports import StoreUnavailableError
from scheduler.protocol.loopback import is_loopback
from scheduler.protocol.names import QUEUE_NAMES
from scheduler.store.opening import open_store
from workers.configuration import Configuration
from workers.settings import Settings


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
