"""Repairs the view (the copy of the rows in Redis) by comparing it with the database.

If a process dies between its commit and its publish, the view lacks the change. Two comparisons find such differences.
The look, in every periodic tick, searches for recently written rows that the view lacks. The audit, every minute,
compares the whole view. Both publish the rows that the view lacks and remove rows that SQL does not have.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduler.model.events import Event
from scheduler.model.view import KINDS, ROW_TYPES, Change, Gone, Kind, Row, View, count_rows
from scheduler.operations.ports import Ports
from scheduler.ports import RowVersion, SetAside

LOOK_BACK_SECONDS = 35.0
"""The number of seconds by which each search for recently written rows goes back before the previous search. A row's
`marked_at` is set before its commit, so this number is larger than the duration of any transaction.
"""
UNDER_WAY_SECONDS = 2.0
"""A committed change younger than this may still be on its way to the view, so publishing it does not count as a
repair.
"""
FEW_ROWS = 1000
"""Up to this number, rows that differ between view and SQL are published one by one, even if they are more than
MUCH_SHARE of a small view.
"""
MUCH_SHARE = 0.1
"""When more than this share of the view's rows differ from SQL, the whole view is rebuilt."""
REPAIRS = "leasehold_view_repairs_total"

Names = dict[Kind, set[str]]


@dataclass
class RepairResult:
    """What a comparison of the view with SQL found. `repairs`: the number of changes that the view lacked for too long.
    `rebuilt`: whether the view was rebuilt. `lag`: age in seconds of the oldest committed change that the view lacked;
    0 if it lacked none.
    """

    repairs: int = 0
    rebuilt: bool = False
    lag: float = 0.0


def look(ports: Ports, view: View, since: float, now: float) -> RepairResult:
    """Publish the rows that were written in SQL at or after `since` and that the view lacks. Return the number and the
    age of the missing changes.

    Rows that one transaction wrote are compared together, and only the rows of transactions that differ are read.
    """
    names: Names = {kind: set() for kind in ROW_TYPES}
    ages: list[float] = []
    for stamp in ports.store.read_versions_since(since, view.recent_writes):
        copy = view.rows(stamp.kind).get(stamp.id)
        # Reservations that ended are not kept in the view, so they are not missing there.
        is_missing = (
            not stamp.is_over if copy is None else (copy.version, copy.marked_at) < (stamp.version, stamp.marked_at)
        )
        if is_missing:
            names[stamp.kind].add(stamp.id)
            ages.append(now - stamp.marked_at)
    if ages:
        _lay_over(ports, view, read_fresh(ports, view, names))
    return _sum_up(ports, "look", ages)


def audit(ports: Ports, view: View, now: float) -> tuple[View, RepairResult]:
    """Compare the counts and versions of all rows of the view with SQL. Publish the rows that differ, or rebuild the
    view if many do.

    Return two things: the view, which is another object after a rebuild, and the result. The view is brought up to date
    before SQL is read, so it is never newer than SQL, unless the database went back to an older state.
    """
    is_whole = ports.view_cache.matches_copy()
    differing = compare(view, ports.store.read_stamps())  # promise: publish-audited
    if (
        is_whole
        and not differing.is_ahead
        and differing.count <= max(FEW_ROWS, MUCH_SHARE * sum(count_rows(view).values()))
    ):
        _lay_over(ports, view, read_fresh(ports, view, differing.names))
        return view, _sum_up(ports, "audit", [now - each for each in differing.marks])
    ports.meter.count(REPAIRS, {"found": "rebuild"})
    lag = max((now - each for each in differing.marks), default=0.0)
    return ports.view_cache.rebuild(ports.store.read_rows()), RepairResult(
        differing.count, rebuilt=True, lag=max(0.0, lag)
    )


@dataclass
class Differing:
    """The rows that differ between view and SQL. `names`: their ids by kind. `marks`: the times at which they were
    written. `is_ahead`: whether the view has a newer version of a row than SQL.
    """

    names: Names = field(default_factory=lambda: {kind: set() for kind in ROW_TYPES})
    marks: list[float] = field(default_factory=list)
    is_ahead: bool = False

    @property
    def count(self) -> int:
        """Return the number of rows that differ between view and SQL."""
        return sum(map(len, self.names.values()))


def compare(view: View, truth: Iterable[RowVersion]) -> Differing:
    """Return the rows that differ: (1) rows that the view has in another version than the database; (2) rows that the
    view lacks; (3) rows that only the view has. `truth`: the versions of the rows in the database.
    """
    found = Differing()
    unknown: Names = {kind: set(view.rows(kind)) for kind in ROW_TYPES}
    for stamp in truth:
        known = view.rows(stamp.kind).get(stamp.id)
        unknown[stamp.kind].discard(stamp.id)
        copy = (known.version, known.marked_at) if known else (-1, 0.0)
        if copy != (stamp.version, stamp.marked_at):
            found.names[stamp.kind].add(stamp.id)
            found.marks.append(stamp.marked_at)
            found.is_ahead |= copy > (stamp.version, stamp.marked_at)
    for kind, names in unknown.items():
        found.names[kind] |= names
        found.marks += [view.rows(kind)[name].marked_at for name in names]
    return found


def read_fresh(ports: Ports, view: View, names: Mapping[Kind, Iterable[str]]) -> list[Change]:
    """Read the rows with these ids from SQL and return them as changes for the view. A row that only the view has is
    returned as Gone.
    """
    store = ports.store
    wanted = {kind: sorted(names.get(kind, ())) for kind in ROW_TYPES}
    rows: list[Row] = []
    if wanted["reservations"]:
        rows += store.find_reservations(ids=wanted["reservations"], limit=len(wanted["reservations"]))
    if wanted["slots"]:
        rows += store.find_slots(ids=wanted["slots"])
    if wanted["run_times"]:
        rows += store.find_run_times(wanted["run_times"])
    if wanted["holds"] or wanted["accounts"]:
        with store.transaction() as transaction:
            rows += transaction.load_holds(wanted["holds"]).values()
            rows += transaction.load_accounts(wanted["accounts"]).values()
    present = {(KINDS[type(row)], row.id) for row in rows}
    gone = [
        Gone(kind, name, view.rows(kind)[name].version + 1)
        for kind, ids in wanted.items()
        for name in ids
        if (kind, name) not in present and name in view.rows(kind)
    ]
    return [*rows, *gone]


def _lay_over(ports: Ports, view: View, changes: list[Change]) -> None:
    if changes:
        ports.view_cache.publish(changes)
    for change in changes:
        view.apply(change)


def _sum_up(ports: Ports, found: str, ages: list[float]) -> RepairResult:
    repairs = sum(age > UNDER_WAY_SECONDS for age in ages)
    if repairs:
        ports.meter.count(REPAIRS, {"found": found}, repairs)
    return RepairResult(repairs, lag=max(0.0, *ages) if ages else 0.0)


SET_ASIDE = "key_set_aside"
"""Name of the event that records a key of Redis with a wrong type or unreadable contents. The key was renamed, and is
written again under its old name.
"""
SET_ASIDE_KEYS = "leasehold_set_aside_keys_total"


def repair_keys(ports: Ports) -> list[SetAside]:
    """Rename keys of the view in Redis that have a wrong type or unreadable contents. Return all keys renamed since the
    last call.

    An event is recorded and counted for each key, including those that other processes renamed. An event may be
    recorded twice but never lost, because the list of renamed keys in Redis is shortened only after the commit.
    """
    ports.view_cache.set_aside_wrong_keys()
    found = ports.view_cache.list_set_aside()
    if not found:
        return found
    with ports.store.transaction() as transaction:
        now = transaction.now()
        transaction.append_events(
            [
                Event(at=now, name=SET_ASIDE, cause="tick", detail={"key": each.key, "found": each.found})
                for each in found
            ]
        )
    ports.view_cache.forget_set_aside(found)
    for each in found:
        ports.meter.count(SET_ASIDE_KEYS, {"key": each.key})
    return found
