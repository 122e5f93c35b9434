"""What is saved is what is loaded, field by field; and every store gives the same results for the same operations."""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, update

from scheduler.model.accounts import Account
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.run_times import RunTimes
from scheduler.model.slots import Slot
from scheduler.model.view import Row
from scheduler.ports import DeposedError, EventFilter, OutboxMessage, StaleWriteError, Store, StoredAnswer, Transaction
from scheduler.store import tables
from scheduler.store.memory import MemoryStore
from scheduler.store.seen import HighestSeen
from scheduler.store.sql import SqlStore
from scheduler.store.tables import metadata
from tests.builders import NOW, a_lease, a_reservation, a_slot
from tests.generated import TIMES
from tests.store.conftest import SQL_KINDS, Clock, MakeOpener
from tests.store.strategies import FLOATS, structs_of
from tests.store.test_contract import an_event, insert, save

BRISKLY = settings(max_examples=12 * TIMES)

ids = (f"row-{number}" for number in count())
FRESH = st.builds(lambda: next(ids))
UNSAVED = st.just(0)
MANY = 120
"""More rows than LEAST_SHARED in `scheduler/store/sqlite.py`."""
LEASES = st.lists(structs_of(Lease), max_size=3, unique_by=lambda lease: lease.component).map(tuple)
UNREAD = st.none()
"""A database counts reservations by their sender, and does not return it with the row."""


class TestRoundTrip:
    @BRISKLY
    @given(row=st.one_of(*(structs_of(kind, id=FRESH, version=UNSAVED) for kind in (Slot, Hold, Account, RunTimes))))
    def test_rows_other_than_reservations(self, store: Store, row: Row) -> None:
        for version in (0, 1):  # inserted, then updated
            (saved,) = save(store, msgspec.structs.replace(row, version=version))
            assert saved == msgspec.structs.replace(row, version=version + 1, marked_at=NOW)
            assert [found for found in store.read_rows() if found.id == row.id] == [saved]

    @BRISKLY
    @given(
        row=structs_of(Reservation, id=FRESH, leases=LEASES, sender=UNREAD),
        changed=structs_of(Reservation, leases=LEASES, sender=UNREAD),
    )
    def test_reservations(self, store: Store, row: Reservation, changed: Reservation) -> None:
        (inserted,) = insert(store, row)
        assert inserted == msgspec.structs.replace(row, sequence=inserted.sequence, version=1, marked_at=NOW)
        assert store.find_reservations(ids=[row.id]) == [inserted]
        names = ("id", "version", "sequence", "request", "created_at", "principal", "key_hash", "instances")
        fixed = {name: getattr(inserted, name) for name in names}
        (saved,) = save(store, msgspec.structs.replace(changed, **fixed))
        assert store.find_reservations(ids=[row.id]) == [saved]
        assert saved == msgspec.structs.replace(changed, **(fixed | {"version": 2, "marked_at": NOW}))

    @settings(BRISKLY, max_examples=10)
    @given(
        rows=st.lists(structs_of(Reservation, id=FRESH, leases=LEASES, sender=UNREAD), min_size=1, max_size=2),
        changed=st.lists(structs_of(Reservation, leases=LEASES, sender=UNREAD), min_size=1, max_size=2),
    )
    def test_many_reservations_that_are_alike(
        self, store: Store, rows: list[Reservation], changed: list[Reservation]
    ) -> None:
        """The values that all rows of a statement have are passed to SQLite once."""
        alike = [msgspec.structs.replace(rows[n % len(rows)], id=f"{rows[0].id}-{n}") for n in range(MANY)]
        inserted = insert(store, *alike)
        assert store.find_reservations(ids=[row.id for row in alike]) == inserted
        names = ("id", "version", "sequence", "request", "created_at", "principal", "key_hash", "instances")
        saved = save(
            store,
            *(
                msgspec.structs.replace(changed[n % len(changed)], **{name: getattr(row, name) for name in names})
                for n, row in enumerate(inserted)
            ),
        )
        assert store.find_reservations(ids=[row.id for row in alike]) == saved

    @BRISKLY
    @given(event=structs_of(Event))
    def test_events(self, store: Store, event: Event) -> None:
        with store.transaction() as transaction:
            transaction.append_events([event])
        (stored,) = store.read_events(EventFilter(newest=True, limit=1))
        assert stored == msgspec.structs.replace(event, number=stored.number)

    @BRISKLY
    @given(answered=structs_of(StoredAnswer, id=FRESH), outgoing=structs_of(OutboxMessage, id=FRESH))
    def test_answers_and_callbacks(self, store: Store, answered: StoredAnswer, outgoing: OutboxMessage) -> None:
        with store.transaction() as transaction:
            transaction.save_answers([answered])
            transaction.save_outgoing([outgoing])
        with store.transaction() as transaction:
            assert transaction.find_answers([answered.id]) == {answered.id: answered}
        assert outgoing in store.find_outgoing(sent_before=1e16, limit=10_000)


NAMES = ("a", "b", "c")
SLOTS = ("linux-1", "linux-2")
Work = Callable[[Transaction], object]


def changed(rows: dict[str, Any], name: str, **fields: object) -> list[Any]:
    return [msgspec.structs.replace(rows[name], **fields)] if name in rows else []


def assign(name: str, slots: tuple[str, ...]) -> Work:
    leases = tuple(a_lease(slot, component=str(number)) for number, slot in enumerate(slots))

    def work(transaction: Transaction) -> object:
        rows = transaction.load_reservations([name])
        saved = transaction.save(changed(rows, name, phase="leased" if leases else "pending", leases=leases))
        return saved, transaction.load_leases(SLOTS)

    return work


def move(name: str, state: str, version: int) -> Work:
    def work(transaction: Transaction) -> object:
        saved = transaction.save([a_slot(name, state=state, version=version)])  # type: ignore[arg-type]
        return saved, transaction.count_active("linux"), len(transaction.next_tokens(2))

    return work


def mark(name: str, at: float) -> Work:
    def work(transaction: Transaction) -> object:
        rows = transaction.load_reservations([name])
        return transaction.mark(changed(rows, name, expires_at=at, confirmed_at=at))

    return work


def end(name: str, at: float) -> Work:
    def work(transaction: Transaction) -> object:
        rows = transaction.load_reservations([name])
        transaction.append_events([an_event(at=at, name="reservation_released", reservation=name)])
        return transaction.save(changed(rows, name, phase="released", changed_at=at, leases=()))

    return work


def drop(name: str) -> Work:
    def work(transaction: Transaction) -> object:
        found: list[Row] = [*transaction.load_slots([name]).values(), *transaction.load_reservations([name]).values()]
        return transaction.delete(found)

    return work


def lead(holder: str, at: float) -> Work:
    def work(transaction: Transaction) -> object:
        leader_term = transaction.take_term(holder)
        transaction.note_tick(leader_term, at)
        return leader_term

    return work


def answer(name: str, at: float) -> Work:
    def work(transaction: Transaction) -> object:
        known = transaction.find_answers(NAMES)
        transaction.save_answers([StoredAnswer(name, at, {"known": sorted(known)})])
        return known

    return work


def submit(names: list[str]) -> Work:
    return lambda transaction: transaction.insert_reservations([a_reservation(name) for name in names])


names = st.sampled_from(NAMES)
slots = st.sampled_from(SLOTS)
pieces = st.one_of(
    st.builds(submit, st.lists(names, max_size=3)),
    st.builds(assign, names, st.lists(slots, max_size=3).map(tuple)),
    st.builds(move, slots, st.sampled_from(["empty", "ready", "booting"]), st.integers(0, 2)),
    st.builds(mark, names, FLOATS),
    st.builds(end, names, st.sampled_from([NOW - 700, NOW])),
    st.builds(drop, names | slots),
    st.builds(lead, st.sampled_from(["x", "y"]), FLOATS),
    st.builds(answer, names, FLOATS),
)
Prune = float
SHARED_CLOCK = Clock()
steps = st.lists(st.lists(pieces, min_size=1, max_size=3) | st.sampled_from([NOW - 650, NOW + 1]), max_size=8)


@pytest.fixture
def sql_stores(make_opener: MakeOpener) -> Iterator[list[SqlStore]]:
    """A store of every SQL kind, kept for all examples: opening a new one takes longer than an example."""
    openers = [make_opener(kind, SHARED_CLOCK) for kind in SQL_KINDS]
    stores = [store for opener in openers if isinstance(store := opener(), SqlStore)]
    yield stores
    for store in stores:
        store.close()


def clear(store: SqlStore) -> None:
    """Make the database as it was after its migration; the store forgets the numbers that it has seen."""
    store._seen = HighestSeen()
    with store.engine.begin() as connection:
        for table in metadata.tables.values():
            if table not in {tables.leader, tables.counters, tables.cluster}:
                connection.execute(delete(table))
        connection.execute(update(tables.leader).values(term=0, holder="", ticked_at=0.0))
        connection.execute(update(tables.counters).values(value=0))
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("DELETE FROM sqlite_sequence")
        else:
            connection.exec_driver_sql("ALTER SEQUENCE events_number_seq RESTART")


def carry_out(store: Store, step: list[Work] | Prune) -> object:
    if isinstance(step, float):
        return store.prune(events_before=step, requests_before=step, ended_before=step)
    try:
        with store.transaction() as transaction:
            return [work(transaction) for work in step]
    except (StaleWriteError, DeposedError) as error:
        return type(error)


def picture(store: Store) -> object:
    """Everything that can be read, in a form that can be compared."""
    with store.transaction() as transaction:
        kept = transaction.find_answers(NAMES), transaction.load_leases(SLOTS)
    return (
        kept,
        sorted(store.read_rows(), key=repr),
        sorted(store.read_versions_since(NOW + 2), key=repr),
        store.find_reservations(),
        store.find_reservations(phases=["pending", "leased"], limit=2),
        sorted(store.find_slots(states=["ready", "empty"]), key=repr),
        store.count_phases(),
        store.read_events(EventFilter()),
        store.load_leader_term(),
    )


@settings(BRISKLY, max_examples=20 * TIMES)
@given(steps=steps)
def test_every_store_gives_the_same_results(sql_stores: list[SqlStore], steps: list[list[Work] | Prune]) -> None:
    SHARED_CLOCK.now = NOW
    for store in sql_stores:
        clear(store)
    memory = MemoryStore(SHARED_CLOCK)
    for step in steps:
        SHARED_CLOCK.now += 1
        expected = carry_out(memory, step)
        assert [carry_out(store, step) for store in sql_stores] == [expected] * len(sql_stores)
    expected = picture(memory)
    assert [picture(store) for store in sql_stores] == [expected] * len(sql_stores)
