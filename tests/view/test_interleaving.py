"""Two processes, one view: whatever they do in whatever order, a view that says it is valid lacks nothing."""

from collections.abc import Iterator
from typing import Literal, cast

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.model.view import Change, Gone, Row
from scheduler.ports import ViewCache, ViewUnavailableError
from scheduler.view.memory import MemoryViewCache
from scheduler.view.redis_view_cache import RedisViewCache
from tests.view.conftest import MakeBoard
from tests.view.rows import slot_at

Word = Literal["write", "lose", "delete", "flush", "rebuild", "read", "forget"]
WORDS: tuple[Word, ...] = ("write", "lose", "delete", "flush", "rebuild", "read", "forget")
NAMES = ("one", "two")
Deed = tuple[Word, int, str]
"""What is done, by which process, to which row."""
deeds = st.tuples(st.sampled_from(WORDS), st.integers(0, 1), st.sampled_from(NAMES))


class World:
    """SQL as a dict, the view under test, and what each process was told about it."""

    def __init__(self, make: MakeBoard) -> None:
        self._make = make
        self.boards = [make(), make()]
        self.rows: dict[str, Row] = {}
        self.version = 0
        self.told: dict[str, int] = {}
        """Row -> the latest version whose publish was accepted."""

    def do(self, deed: Deed, meanwhile: Deed | None = None) -> None:
        """Let a process do it; `meanwhile` happens while a rebuild reads the rows."""
        word, process, name = deed
        match word:
            case "write" | "lose" | "delete":
                self._change(self.boards[process], name, word)
            case "flush":
                wipe(self.boards[process])
            case "rebuild":
                self._rebuild(self.boards[process], meanwhile)
            case "read":
                self.check(self.boards[process])
            case "forget":
                # The process dies, another takes its place.
                self.boards[process] = self._make()

    def check(self, view_cache: ViewCache) -> None:
        """A view that can be had holds of every row at least what was accepted, and nothing that never was."""
        view = view_cache.catch_up() or view_cache.load()
        if view is None:
            return
        for name, version in self.told.items():
            known, row = view.slots.get(name), self.rows.get(name)
            if known is None:
                assert row is None or row.version > version, f"{name} is missing"
            else:
                assert known.version >= version, f"{name} is old"
                assert known.version <= self.version
        if set(view.slots) - set(self.told) - set(self.rows):
            assert all(view.slots[name].version <= self.version for name in view.slots)

    def _change(self, view_cache: ViewCache, name: str, word: Word) -> None:
        change: Change
        self.version += 1
        if word == "delete":
            if self.rows.pop(name, None) is None:
                return
            change = Gone("slots", name, self.version)
        else:
            change = self.rows[name] = slot_at(self.version, name)
        if word != "lose" and view_cache.publish([change]):
            self.told[name] = self.version

    def _rebuild(self, view_cache: ViewCache, meanwhile: Deed | None) -> None:
        def read() -> Iterator[Row]:
            rows = list(self.rows.values())
            if meanwhile is not None:
                self.do(meanwhile)
            yield from rows

        try:
            view = view_cache.rebuild(read())
        except ViewUnavailableError:
            return
        assert set(view.slots) >= {name for name, row in self.rows.items() if self.told.get(name) == row.version}


def wipe(view_cache: ViewCache) -> None:
    """Lose everything, as a FLUSHALL does."""
    if isinstance(view_cache, MemoryViewCache):
        view_cache.redis.flush()
    else:
        cast("RedisViewCache", view_cache)._client.flushall()


@given(st.lists(st.tuples(deeds, st.none() | deeds), max_size=25))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_valid_view_never_lacks_an_accepted_publish(
    make_board: MakeBoard, story: list[tuple[Deed, Deed | None]]
) -> None:
    world = World(make_board)
    wipe(world.boards[0])
    for deed, meanwhile in story:
        world.do(deed, meanwhile)
    for view_cache in (*world.boards, make_board()):
        world.check(view_cache)
    world.do(("rebuild", 0, ""))
    view = world.boards[0].catch_up()
    assert view is not None
    assert view.slots == world.rows
