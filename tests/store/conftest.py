"""Every store, behind one fixture: `store` runs a test once on each."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from scheduler.ports import Store
from scheduler.store.memory import MemoryStore
from scheduler.store.migrating import migrate
from scheduler.store.opening import open_store
from tests.builders import NOW

KINDS = ("memory", "sqlite")
SQL_KINDS = ("sqlite",)


class Clock:
    """A clock that stands until it is told otherwise."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


Opener = Callable[[], Store]
"""Opens the same database anew: what another process would do."""


def make_opener(kind: str, folder: Path, clock: Clock) -> Opener:
    """An empty store of this kind; memory has no other process, so that its opener gives the same store."""
    if kind == "memory":
        store = MemoryStore(clock)
        return lambda: store
    url = f"sqlite:///{folder / 'leasehold.db'}"
    migrate(url)
    return lambda: open_store(url, clock)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Store]:
    opened = make_opener(request.param, tmp_path, clock)()
    yield opened
    opened.close()


@pytest.fixture(params=SQL_KINDS)
def reopen(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Opener]:
    """Opens the same SQL database as often as it is called, each time with connections of its own."""
    opener = make_opener(request.param, tmp_path, clock)
    with ExitStack() as opened:

        def keep() -> Store:
            store = opener()
            opened.callback(store.close)
            return store

        yield keep
