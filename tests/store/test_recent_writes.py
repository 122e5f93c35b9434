"""The search for rows that a view lacks: it reads few rows, and finds each row whose publish was lost."""

from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.accounts import Account
from scheduler.model.launch_backoff import Hold
from scheduler.model.run_times import RunTimes
from scheduler.model.view import KEPT_SECONDS, Change, RecentWrites, Row, View
from scheduler.ports import RowVersion, Store, Transaction
from tests.builders import NOW, a_reservation, a_slot
from tests.generated import TIMES
from tests.store.conftest import Clock
from tests.store.test_contract import insert, save

NAMES = ("r1", "r2", "r3", "s-1", "s-2", "h1", "h2", "a1", "t1", "t2")
ACTIONS = ("save", "save", "mark", "remove")
SUBSETS = st.sets(st.sampled_from(NAMES), min_size=1, max_size=4)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        SUBSETS,
        # Time stands still, passes, or was set back, as for a PostgreSQL transaction that waited for another one.
        st.sampled_from([0.0, 0.0, 0.25, 7.0, -0.25]),
        st.sets(st.sampled_from(NAMES), max_size=3),
    ),
    max_size=12,
)
ROUNDS = count(1)


def a_hold(name: str) -> Hold:
    return Hold(id=name, pool="linux", kind="capacity", refused_at=NOW, until=NOW + 60)


def lacks(view: View, stamp: RowVersion) -> bool:
    copy = view.rows(stamp.kind).get(stamp.id)
    return not stamp.is_over if copy is None else (copy.version, copy.marked_at) < (stamp.version, stamp.marked_at)


def find_lacking(store: Store, view: View, since: float) -> set[RowVersion]:
    return {each for each in store.read_versions_since(since, view.recent_writes) if lacks(view, each)}


class Writer:
    """Writes rows in transactions, and returns the changes that a process would publish."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.store, self.prefix = store, prefix

    def act(self, action: str, names: set[str]) -> list[Change]:
        ids = {kind: sorted(f"{self.prefix}{name}" for name in names if name[0] == kind) for kind in "rshat"}
        with self.store.transaction() as transaction:
            known: dict[str, Row] = {
                **transaction.load_reservations(ids["r"]),
                **transaction.load_slots(ids["s"]),
                **transaction.load_holds(ids["h"]),
                **transaction.load_accounts(ids["a"]),
                **transaction.load_run_times(ids["t"]),
            }
            match action:
                case "save":
                    return self._save(transaction, ids, known)
                case "mark":
                    return [*transaction.mark(list(known.values()))]
                case _:
                    rows = [row for kind in "sht" for name in ids[kind] if (row := known.get(name)) is not None]
                    ended: list[Row] = [
                        msgspec.structs.replace(row, phase="released")
                        for name in ids["r"]
                        if (row := known.get(name)) is not None
                    ]
                    return [*transaction.save(ended), *transaction.delete(rows)]

    def _save(self, transaction: Transaction, ids: dict[str, list[str]], known: dict[str, Row]) -> list[Change]:
        new = [a_reservation(name) for name in ids["r"] if name not in known]
        changed = [*known.values()]
        changed += [a_slot(name) for name in ids["s"] if name not in known]
        changed += [a_hold(name) for name in ids["h"] if name not in known]
        changed += [Account(id=name) for name in ids["a"] if name not in known]
        changed += [RunTimes(id=name, seconds=(5.0,)) for name in ids["t"] if name not in known]
        return [*transaction.insert_reservations(new), *transaction.save(changed)]


@settings(max_examples=12 * TIMES)
@given(steps=STEPS, age=st.sampled_from([0.0, 0.25, 10.0, 1000.0]))
def test_each_lost_publish_is_found_whatever_else_was_published(
    store: Store, clock: Clock, steps: list[tuple[str, set[str], float, set[str]]], age: float
) -> None:
    """The same rows are found as by a comparison of all rows that were written since then."""
    number = next(ROUNDS)
    clock.now = began = NOW + 10_000.0 * number
    writer, view = Writer(store, f"{number}-"), View()
    for action, names, seconds, lost in steps:
        clock.now += seconds
        for change in writer.act(action, names):
            if change.id.removeprefix(writer.prefix) not in lost:
                view.apply(change)
    since = max(clock.now - age, began - 100.0)
    expected = {each for each in store.read_versions_since(since) if lacks(view, each)}
    assert find_lacking(store, view, since) == expected
    if not any(lost for *_, lost in steps):
        assert expected == set()


def test_no_row_is_read_of_which_the_view_has_the_version(store: Store, clock: Clock) -> None:
    view = View()
    for number in range(3):
        clock.now += 1
        rows = save(store, *[a_slot(f"s{number}-{each}", version=0) for each in range(3)], a_hold(f"h{number}"))
        for row in [*rows, *insert(store, a_reservation(f"r{number}"))]:
            view.apply(row)
    assert len(store.read_versions_since(0)) == 15
    assert store.read_versions_since(0, view.recent_writes) == []


def test_only_rows_of_the_transaction_are_read_whose_publish_was_lost(store: Store, clock: Clock) -> None:
    view = View()
    for number in range(5):
        clock.now += 1
        for row in save(store, a_slot(f"s-{number}"), a_hold(f"h{number}")):
            view.apply(row)
    clock.now += 1
    (lost,) = save(store, view.slots["s-2"])
    found = store.read_versions_since(0, view.recent_writes)
    assert found == [RowVersion("slots", "s-2", lost.version, lost.marked_at)]


def test_a_write_at_the_same_time_as_the_one_before_is_found(store: Store) -> None:
    (slot,) = save(store, a_slot("s-1"))
    view = View([slot])
    save(store, slot)
    assert len(find_lacking(store, view, 0)) == 1


def test_a_row_in_place_of_a_deleted_one_is_found(store: Store) -> None:
    """One row of a transaction was published, then deleted; another one of the same transaction was not."""
    first, _ = save(store, a_hold("h1"), a_hold("h2"))
    view = View([first])
    with store.transaction() as transaction:
        transaction.delete([first])
    assert {each.id for each in find_lacking(store, view, 0)} == {"h2"}


class TestRecentWrites:
    @pytest.mark.parametrize("together", [False, True])
    def test_rows_that_were_written_long_before_the_newest_are_forgotten(self, *, together: bool) -> None:
        writes = RecentWrites()
        if together:
            marks = range(1000)
            writes.note_all("slots", [f"s-{mark}" for mark in marks], [1] * 1000, list(map(float, marks)))
        else:
            for mark in range(1000):
                writes.note("slots", f"s-{mark}", 1, float(mark))
        for age, is_kept in ((0, True), (KEPT_SECONDS - 1, True), (2 * KEPT_SECONDS + 1, False), (999, False)):
            mark = int(999 - age)
            assert writes.has_all("slots", float(mark), [f"s-{mark}"], 1) is is_kept
        writes.note("slots", "s-3", 2, 3.0)
        assert not writes.has_all("slots", 3.0, ["s-3"], 2)

    @pytest.mark.parametrize(
        ("keys", "versions", "has"),
        [(["s-1", "s-2"], 3, True), (["s-2"], 2, True), (["s-1", "s-2"], 4, False), (["s-1", "s-3"], 3, False)],
    )
    def test_a_group_is_known_if_each_row_is(self, keys: list[str], versions: int, has: Any) -> None:
        writes = RecentWrites()
        writes.note("slots", "s-1", 1, 5.0)
        writes.note("slots", "s-2", 2, 5.0)
        assert writes.has_all("slots", 5.0, keys, versions) is has
        assert not writes.has_all("holds", 5.0, keys, versions)
        assert not writes.has_all("slots", 6.0, keys, versions)

    def test_a_deleted_row_is_not_known(self) -> None:
        writes = RecentWrites()
        writes.note("slots", "s-1", 1, 5.0)
        writes.forget("slots", "s-1", 5.0)
        writes.forget("holds", "h1", 5.0)
        assert not writes.has_all("slots", 5.0, ["s-1"], 1)
