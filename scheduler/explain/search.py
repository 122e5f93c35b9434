"""The smallest change that would end a wait, found by asking the engine itself: what if?

Each kind of change is tried on a copy of the view or the rules, least first, and a plan is made of that; what is
suggested is a change under which the plan serves the reservation, and no smaller one of its kind does. So there is
no second set of rules that could say something else than the tick. The kinds are in `changes.py`; where no single one
would do, two together are tried (`combining.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec

from scheduler.model.accounts import Account
from scheduler.model.decisions import Assign, Plan, Preempt
from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules, merge_rules, read_rules
from scheduler.model.slot_records import describe_slot_record
from scheduler.model.slots import Slot
from scheduler.model.validation import InvalidInputError
from scheduler.model.view import KINDS, Change, Gone, Row, View
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache

MOST_PLANS: Final = 150
"""Plans that one search makes at most."""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """One change that would end the wait: prose, and what exactly it is."""

    kind: str
    text: str
    rows: tuple[Row, ...] = ()
    """Rows as they would be."""
    config: Mapping[str, Any] = {}
    """Keys of the rules as they would be: a partial config."""
    wait_seconds: float = 0.0
    """For how long nothing is to be done but to wait."""


class Search:
    """One reservation's search: what is, and the question whether a change would serve it.

    The view is changed for the time of each question and is as it was afterwards. `has_time` is asked before each
    plan; when it says no, or after MOST_PLANS of them, nothing more is tried and `is_cut_short` is true.
    """

    def __init__(
        self,
        view: View,
        rules: Rules,
        reservation: Reservation,
        now: float,
        has_time: Callable[[], bool] = lambda: True,
        cache: PlanCache | None = None,
    ) -> None:
        self.view, self.rules, self.reservation, self.now = view, rules, reservation, now
        self.is_cut_short = False
        self._has_time, self._plans = has_time, 0
        self._cache = PlanCache() if cache is None else cache

    def may_go_on(self) -> bool:
        """Whether there is time for more; to be asked by whoever looks through many rows for candidates, too."""
        self.is_cut_short = self.is_cut_short or self._plans >= MOST_PLANS or not self._has_time()
        return not self.is_cut_short

    def serves(self, change: Suggestion) -> bool:
        """Whether the plan with this change leases it, or has all that it needs on its way.

        Under rules that would be refused, as two offerings of one name are, nothing is served.
        """
        if not self.may_go_on():
            return False
        self._plans += 1
        with suppress(InvalidInputError), self.assuming(change):
            return is_served(plan(self.view, self.rules, self.now, self._cache), self.reservation.id)
        return False

    @contextmanager
    def assuming(self, change: Suggestion) -> Iterator[None]:
        """For the time of the block all is as it would be after this change. Raises InvalidInputError for rules that
        would be refused.
        """
        before = self.rules, self.reservation, self.now
        rules = change_rules(self.rules, change.config)
        with _changed(self.view, change.rows):
            self.rules, self.now = rules, self.now + change.wait_seconds
            self.reservation = self.view.reservations.get(self.reservation.id, self.reservation)
            try:
                yield
            finally:
                self.rules, self.reservation, self.now = before

    def find_first(self, changes: Iterable[Suggestion]) -> Suggestion | None:
        """The first of these that serves it."""
        for change in changes:
            if self.serves(change):
                return change
            if self.is_cut_short:
                return None
        return None

    def find_least(self, make: Callable[[int], Suggestion], most: int) -> Suggestion | None:
        """The least number from 1 to `most` with which this change serves it, one less of which does not."""
        if most < 1 or not self.serves(make(most)):
            return None
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.serves(make(middle)) else (middle, high)
        return None if self.is_cut_short else make(high)


Kind = Callable[[Search], Suggestion | None]


def suggest_change(search: Search, kinds: Iterable[Kind]) -> Suggestion | None:
    """The change of the first kind that would serve a reservation which waits; None when it is served as things
    are, and when no change of these kinds would do (or was found in time: `search.is_cut_short`).
    """
    nothing = Suggestion(kind="nothing", text="")
    if search.reservation.phase != "pending" or search.serves(nothing):
        return None
    return find_of_kinds(search, kinds)


def find_of_kinds(search: Search, kinds: Iterable[Kind]) -> Suggestion | None:
    """What the first of these kinds finds that finds anything; None when time is over before."""
    for kind in kinds:
        found = kind(search)
        if found is not None or search.is_cut_short:
            return found
    return None


def is_served(outcome: Plan, name: str) -> bool:
    """Whether the plan leases it, or has all that it needs on its way: machines that boot, or the place of those who
    have to let go.
    """
    if any(isinstance(each, Assign | Preempt) and each.reservation == name for each in outcome.decisions):
        return True
    return any(each.reservation == name and each.code == "booting" for each in outcome.waiting)


def change_rules(rules: Rules, config: Mapping[str, Any]) -> Rules:
    """The rules with a partial config laid over them. Raises InvalidInputError."""
    if not config:
        return rules
    return read_rules(merge_rules(rules.model_dump(exclude_unset=True), dict(config)))


def describe_change(view: View, change: Suggestion) -> dict[str, Any]:
    """The change as a document: `kind`, `text`, `wait_seconds`, and `actions` as in a scenario's timeline, which
    make it when they are played one after the other.
    """
    actions: list[dict[str, Any]] = [{"rules": change.config}] if change.config else []
    actions += [action for row in change.rows for action in _list_actions(view, row)]
    return {"kind": change.kind, "text": change.text, "wait_seconds": change.wait_seconds, "actions": actions}


def _list_actions(view: View, row: Row) -> Iterator[dict[str, Any]]:
    known = view.find(row)
    if isinstance(row, Reservation) and isinstance(known, Reservation):
        if row.phase != known.phase:
            yield {"release": row.id}
        if row.suspended != known.suspended:
            yield {"resume": row.id}
        if row.priority != known.priority:
            yield {"priority": {"reservation": row.id, "priority": row.priority}}
    elif isinstance(row, Account):
        yield {"account": {"id": row.id, **_find_changed(row, known)}}
    elif isinstance(row, Slot) and (known is not None or row.state == "ready"):
        # Empty slots that are new come with the rules.
        if known is not None and row == msgspec.structs.replace(known, cordoned=False):
            yield {"uncordon": row.id}
        else:
            yield {"slot": describe_slot_record(row, view.leases_of(row.id))}


def _find_changed(row: Account, known: Row | None) -> dict[str, Any]:
    names = [
        name for name in row.__struct_fields__ if name != "id" and getattr(row, name) != getattr(known, name, None)
    ]
    return {name: msgspec.json.decode(msgspec.json.encode(getattr(row, name))) for name in names}


@contextmanager
def _changed(view: View, rows: Iterable[Row]) -> Iterator[None]:
    """The view with these rows, for the time of the block."""
    back: list[Change] = []
    try:
        for row in rows:
            known = view.find(row)
            back.append(known or Gone(KINDS[type(row)], row.id, row.version + 1))
            view.apply(row)
        yield
    finally:
        for change in reversed(back):
            view.apply(change)
