"""Observe the database: whether it answers and accepts writes, its schema, its clock, and the rules in force."""

from collections.abc import Iterator
from contextlib import closing
from typing import Final

from leasehold.doctor.rules import (
    HOSTS,
    MACHINES,
    Finding,
    failure,
    judge_clock,
    judge_hosts,
    judge_machines,
    judge_membership,
    judge_rules,
    judge_schema,
    ok,
    skipped,
    warning,
)
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
from scheduler.protocol.masking import show_url
from scheduler.store.migrating import schema_state
from scheduler.store.opening import open_store, try_write
from scheduler.view.connection import make_redis
from scheduler.view.redis_ports import RedisRecord
from workers.configuration import Configuration, find_configuration

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
        yield from _look_at_clock(store)
        yield _look_at_membership(store, configuration)
        if tries_write:
            yield _look_at_writes(url)
        yield _look_at_rules(store, configuration)
        yield _look_at_machines(store)
        yield _look_at_hosts(store)


def _look_at_clock(store: Store) -> Iterator[Finding]:
    try:
        offset = store.read_cluster().reference_offset
    except StoreUnavailableError as error:
        yield failure(CLOCK, str(error), "Look for the cause in the database's log.")
        return
    yield judge_clock(CLOCK, 0.0 - offset, 0.0, "its")


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
