"""Observe Celery's settings and versions, the access to Flower and the console, and the time of the last tick."""

import ipaddress
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib.metadata import version

from leasehold.client.discovery import find_running
from leasehold.doctor.broker import read_report_age
from leasehold.doctor.database import read_tick_age
from leasehold.doctor.findings import Finding, skipped
from leasehold.doctor.rules import judge_celery, judge_console, judge_flower, judge_ticks
from leasehold.errors import LeaseholdError, UntrustedFolder
from leasehold.web.ways_in import find_refusal, has_way_in
from scheduler.model.validation import InvalidInputError
from scheduler.ports import StoreUnavailableError
from scheduler.protocol.loopback import is_loopback
from scheduler.store.opening import open_store
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
