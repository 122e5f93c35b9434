"""Every store, behind one fixture: `store` runs a test once on each."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import make_url

from scheduler.ports import Store
from scheduler.store.memory import MemoryStore
from scheduler.store.opening import open_store
from scheduler.store.postgresql import PostgresDialect
from scheduler.store.sql import SqlStore
from tests.builders import NOW

KINDS = ("memory", "sqlite", "postgresql")
SQL_KINDS = ("sqlite", "postgresql")


class Clock:
    """A clock that stands until a test changes it."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


Open = Callable[[str], SqlStore]
"""Opens the database of a URL."""
Opener = Callable[[], Store]
"""Opens the same database again, as another process would."""
MakeOpener = Callable[[str, Clock], Opener]


@pytest.fixture
def make_opener(request: pytest.FixtureRequest) -> MakeOpener:
    """Makes an empty store of a kind; memory has no other process, so that its opener gives the same store."""

    def make(kind: str, clock: Clock) -> Opener:
        match kind:
            case "memory":
                store = MemoryStore(clock)
                return lambda: store
            case "sqlite":
                url = request.getfixturevalue("sqlite_url")
                return lambda: open_store(url, clock)
            case _:
                # Requested only by tests that need it, since the server takes a while to start.
                server_url = make_url(request.getfixturevalue("postgresql_url"))
                return lambda: SqlStore(PostgresDialect(server_url, clock))

    return make


@pytest.fixture
def open_sql() -> Iterator[Open]:
    """Opens databases that are there or not, and closes them all at the end."""
    with ExitStack() as opened:

        def open_url(url: str) -> SqlStore:
            store = open_store(url)
            assert isinstance(store, SqlStore)
            opened.callback(store.close)
            return store

        yield open_url


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, make_opener: MakeOpener, clock: Clock) -> Iterator[Store]:
    opened = make_opener(request.param, clock)()
    yield opened
    opened.close()


@pytest.fixture(params=SQL_KINDS)
def reopen(request: pytest.FixtureRequest, make_opener: MakeOpener, clock: Clock) -> Iterator[Opener]:
    """Opens the same SQL database as often as it is called, each time with connections of its own."""
    opener = make_opener(request.param, clock)
    with ExitStack() as opened:

        def keep() -> Store:
            store = opener()
            opened.callback(store.close)
            return store

        yield keep
