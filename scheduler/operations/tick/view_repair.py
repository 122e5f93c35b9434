"""Repairs the view by comparing it with the database: a look in every periodic tick, an audit every minute.

A process that dies between its commit and its publish leaves the view behind. The look finds recently written rows,
the audit everything else. Both publish what the view lacks and remove rows that SQL does not have.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduler.model.events import Event
from scheduler.model.reservations import Reservation, is_over
from scheduler.model.view import KINDS, ROW_TYPES, Change, Gone, Kind, Row, View, count_rows, is_newer
from scheduler.operations.ports import Ports
from scheduler.ports import RowVersion, SetAside

LOOK_BACK_SECONDS = 35.0
"""Seconds that a look reads back: longer than any transaction, as rows are committed in another order than marked."""
UNDER_WAY_SECONDS = 2.0
"""A younger change may still be on its way from its commit to the view, so publishing it does not count as a repair."""
FEW_ROWS = 1000
"""Up to this many differing rows are published one by one, however small the view is."""
MUCH_SHARE = 0.1
"""When more than this share of the view differs, it is rebuilt instead."""
REPAIRS = "leasehold_view_repairs_total"

Names = dict[Kind, set[str]]


@dataclass
class RepairResult:
    """What was wrong with the view: the number of changes that it lacked for too long, and whether it was rebuilt.

    `lag`: age in seconds of the oldest committed change that it lacked, 0 if none.
    """

    repairs: int = 0
    rebuilt: bool = False
    lag: float = 0.0


def look(ports: Ports, view: View, since: float, now: float) -> RepairResult:
    """Publish the rows that were written at or after `since` and that the view lacks."""
    changed = ports.store.read_changed_since(since)
    newer = [row for row in changed if is_newer(row, view.find(row))]
    # The view rightly lacks reservations that ended.
    missing = [row for row in newer if view.find(row) or not (isinstance(row, Reservation) and is_over(row))]
    _lay_over(ports, view, missing)
    return _sum_up(ports, "look", [now - row.marked_at for row in missing])


def audit(ports: Ports, view: View, now: float) -> tuple[View, RepairResult]:
    """Compare counts and versions of the view with SQL. Publish what differs, or rebuild the view if that is much.

    Returns the view, which is another object after a rebuild. The view is brought up to date before SQL is read, so
    it is never newer than SQL, unless the database went back to an older state.
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
    """The rows that differ: their names, the time marks of those in SQL, and whether one is newer than in SQL."""

    names: Names = field(default_factory=lambda: {kind: set() for kind in ROW_TYPES})
    marks: list[float] = field(default_factory=list)
    is_ahead: bool = False

    @property
    def count(self) -> int:
        """Return the number of rows."""
        return sum(map(len, self.names.values()))


def compare(view: View, truth: Iterable[RowVersion]) -> Differing:
    """Return the rows of which the view has another version than the database, that it lacks, or that
    only the view has.
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
    """Return the rows of these names as SQL has them now. A row that only the view has is returned as Gone."""
    store = ports.store
    wanted = {kind: sorted(names.get(kind, ())) for kind in ROW_TYPES}
    rows: list[Row] = []
    if wanted["reservations"]:
        rows += store.find_reservations(ids=wanted["reservations"], limit=len(wanted["reservations"]))
    if wanted["slots"]:
        rows += store.find_slots(ids=wanted["slots"])
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


def _lay_over(ports: Ports, view: View, changes: list[Row] | list[Change]) -> None:
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
"""The event of a key that had a wrong type or unreadable contents: it was renamed, and is written again."""
SET_ASIDE_KEYS = "leasehold_set_aside_keys_total"


def repair_keys(ports: Ports) -> list[SetAside]:
    """Rename the keys of the view that cannot be used. Record and count all keys that were renamed since the last call.

    Other processes rename keys, too. Each event is committed at least once, because the list in Redis is shortened
    after the commit.
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
