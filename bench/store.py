"""The store on SQLite and on PostgreSQL: rows written in a second in bulk, and one small transaction, on one machine.

Both are durable: every commit is on disk. PostgreSQL is the server that the tests start, on loopback.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import msgspec

from scheduler.model.reservations import Component, Lease, Request, Reservation
from scheduler.model.slots import Slot
from scheduler.ports import Store
from scheduler.store.migrating import migrate
from scheduler.store.opening import open_store
from testbed.postgresql_server import open_postgresql as open_postgresql_server

ROWS = 10_000
CHUNK = 1_000
SMALL = 200
REQUEST = Request(system="bench", components=(Component(name="main", resources={"cpus": 1}),))

Figures = dict[str, float]


@contextmanager
def open_sqlite() -> Iterator[Store]:
    """A new database in a file."""
    with TemporaryDirectory(prefix="leasehold-bench-") as folder:
        url = f"sqlite:///{Path(folder) / 'bench.db'}"
        migrate(url)
        store = open_store(url)
        yield store
        store.close()


@contextmanager
def open_postgresql() -> Iterator[Store]:
    """A new database in a new server."""
    with open_postgresql_server() as url:
        migrate(url)
        store = open_store(url)
        yield store
        store.close()


def measure(store: Store) -> Figures:
    """Operations a second of each kind."""
    rows = [Reservation(id=f"r{number}", request=REQUEST, created_at=1.0, changed_at=1.0) for number in range(ROWS)]
    found: Figures = {}
    began = perf_counter()
    for chunk in _cut(rows):
        with store.transaction() as transaction:
            transaction.insert_reservations(chunk)
    found["reservations inserted"] = ROWS / (perf_counter() - began)
    with store.transaction() as transaction:
        transaction.save([Slot(id=f"s{number}", pool="bench", since=1.0) for number in range(CHUNK)])
    began = perf_counter()
    for chunk in _cut(rows):
        _lease(store, [row.id for row in chunk])
    found["leases committed"] = ROWS / (perf_counter() - began)
    began = perf_counter()
    for number in range(SMALL):
        with store.transaction() as transaction:
            transaction.mark(list(transaction.load_reservations([f"r{number}"]).values()))
    found["single renewals"] = SMALL / (perf_counter() - began)
    began = perf_counter()
    count = sum(1 for _ in store.read_rows())
    assert count == ROWS + CHUNK, count
    found["rows read"] = count / (perf_counter() - began)
    return found


def _cut(rows: list[Reservation]) -> Iterator[list[Reservation]]:
    return (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))


def _lease(store: Store, names: list[str]) -> None:
    """What a commit does: lock, take tokens, write reservations, leases and slots."""
    with store.transaction() as transaction:
        current = transaction.load_reservations(names).values()
        slots = transaction.load_slots([f"s{number}" for number in range(CHUNK)])
        tokens = transaction.next_tokens(len(names))
        leased = [
            msgspec.structs.replace(row, phase="leased", token=token, leases=(_make_lease(slot, token),))
            for row, slot, token in zip(current, slots, tokens, strict=True)
        ]
        transaction.save([*leased, *slots.values()])


def _make_lease(slot: str, token: int) -> Lease:
    return Lease(component="main", slot=slot, epoch=1, token=token, resources={}, assigned_at=1.0)


def main() -> None:
    """Measure both, and show each with the ratio of PostgreSQL to SQLite."""
    with open_sqlite() as store:
        sqlite = measure(store)
    with open_postgresql() as store:
        postgresql = measure(store)
    print(f"{'':<24}{'SQLite':>12}{'PostgreSQL':>12}{'ratio':>8}")
    for name, rate in sqlite.items():
        print(f"{name:<24}{rate:>10,.0f}/s{postgresql[name]:>10,.0f}/s{postgresql[name] / rate:>8.2f}")


if __name__ == "__main__":
    main()
