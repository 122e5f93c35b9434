"""Two processes share a view: after any sequence of their steps, a valid view contains every accepted row."""

from collections.abc import Iterator
from typing import Literal, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.view import Change, Gone, Row
from scheduler.ports import ViewCache, ViewUnavailableError
from scheduler.view.memory import MemoryViewCache
from scheduler.view.redis_view_cache import RedisViewCache
from tests.view.conftest import MakeViewCache
from tests.view.rows import slot_at

Step = Literal["write", "lose", "delete", "flush", "rebuild", "read", "forget"]
STEPS: tuple[Step, ...] = ("write", "lose", "delete", "flush", "rebuild", "read", "forget")
NAMES = ("one", "two")
Action = tuple[Step, int, str]
"""(step, number of the process, id of the row)"""
actions = st.tuples(st.sampled_from(STEPS), st.integers(0, 1), st.sampled_from(NAMES))


class Simulation:
    """The database as a dict, the view under test, and the publishes that it accepted."""

    def __init__(self, make: MakeViewCache) -> None:
        self._make = make
        self.view_caches = [make(), make()]
        self.rows: dict[str, Row] = {}
        self.version = 0
        self.accepted: dict[str, int] = {}
        """Row -> the latest version whose publish was accepted."""

    def do(self, action: Action, meanwhile: Action | None = None) -> None:
        """Run one action; `meanwhile` runs while a rebuild reads the rows."""
        step, process, name = action
        match step:
            case "write" | "lose" | "delete":
                self._change(self.view_caches[process], name, step)
            case "flush":
                flush(self.view_caches[process])
            case "rebuild":
                self._rebuild(self.view_caches[process], meanwhile)
            case "read":
                self.check(self.view_caches[process])
            case "forget":
                # The process ends and a new one replaces it.
                self.view_caches[process] = self._make()

    def check(self, view_cache: ViewCache) -> None:
        """Check the view of a process, if it is valid.

        It contains each row in the accepted version or a later one, and no version that was never written.
        """
        view = view_cache.catch_up() or view_cache.load()
        if view is None:
            return
        for name, version in self.accepted.items():
            known, row = view.slots.get(name), self.rows.get(name)
            if known is None:
                assert row is None or row.version > version, f"{name} is missing"
            else:
                assert known.version >= version, f"{name} is old"
                assert known.version <= self.version
        if set(view.slots) - set(self.accepted) - set(self.rows):
            assert all(view.slots[name].version <= self.version for name in view.slots)

    def _change(self, view_cache: ViewCache, name: str, step: Step) -> None:
        change: Change
        self.version += 1
        if step == "delete":
            if self.rows.pop(name, None) is None:
                return
            change = Gone("slots", name, self.version)
        else:
            change = self.rows[name] = slot_at(self.version, name)
        if step != "lose" and view_cache.publish([change]):
            self.accepted[name] = self.version

    def _rebuild(self, view_cache: ViewCache, meanwhile: Action | None) -> None:
        def read() -> Iterator[Row]:
            rows = list(self.rows.values())
            if meanwhile is not None:
                self.do(meanwhile)
            yield from rows

        try:
            view = view_cache.rebuild(read())
        except ViewUnavailableError:
            return
        assert set(view.slots) >= {name for name, row in self.rows.items() if self.accepted.get(name) == row.version}


def flush(view_cache: ViewCache) -> None:
    """Delete all keys, as FLUSHALL does."""
    if isinstance(view_cache, MemoryViewCache):
        view_cache.redis.flush()
    else:
        cast("RedisViewCache", view_cache)._client.flushall()


@given(st.lists(st.tuples(actions, st.none() | actions), max_size=25))
@settings(max_examples=80)
def test_a_valid_view_never_lacks_an_accepted_publish(
    make_view_cache: MakeViewCache, history: list[tuple[Action, Action | None]]
) -> None:
    simulation = Simulation(make_view_cache)
    flush(simulation.view_caches[0])
    for action, meanwhile in history:
        simulation.do(action, meanwhile)
    for view_cache in (*simulation.view_caches, make_view_cache()):
        simulation.check(view_cache)
    simulation.do(("rebuild", 0, ""))
    view = simulation.view_caches[0].catch_up()
    assert view is not None
    assert view.slots == simulation.rows
