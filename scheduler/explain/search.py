"""Search for the smallest change of rows or rules that would end the wait of a pending reservation.

Each change is applied to the view or the rules as a trial, smallest change first, and `plan()` plans the result. The
first change under which the plan serves the reservation is the suggestion. The search has no scheduling rules of its
own that could differ from the tick's. The kinds of change are in `changes/`; this module imports none of them.

If no single change suffices, two changes are tried together, for example a label and a larger slot. The first change is
applied, and then the second one is searched like a single change. The last functions of this module list the pools and
slots that may serve the reservation.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import Any, Final

import msgspec

from scheduler.model.accounts import Account
from scheduler.model.decisions import Assign, Plan, Preempt
from scheduler.model.pools import Pool
from scheduler.model.reservations import Component, Reservation
from scheduler.model.resources import Labels
from scheduler.model.rules import Rules, merge_rules, read_rules
from scheduler.model.slot_records import describe_slot_record
from scheduler.model.slots import Slot
from scheduler.model.validation import InvalidInputError
from scheduler.model.view import KINDS, Change, Gone, Row, View
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache

MOST_PLANS: Final = 150
"""The greatest number of plans that one search for a change makes."""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """A change of rows and rules that would end a reservation's wait. `text`: describes the change to people."""

    kind: str
    text: str
    rows: tuple[Row, ...] = ()
    """The rows (reservations, slots, accounts) as they are after the change. Each replaces the row with the same id."""
    config: Mapping[str, Any] = {}
    """The changed keys of the rules with their new values, nested as in the configuration file. Unchanged keys are
    missing.
    """
    wait_seconds: float = 0.0
    """Seconds after which the wait ends by itself; 0 if an operator has to make the change."""


class Search:
    """One search for a change that would end the wait of one pending reservation. After the search the view is as
    before.

    The search calls `has_time` before each plan. When `has_time` returns False, or after MOST_PLANS plans, the search
    stops and sets `is_cut_short`. `cache`: the plan cache of the view (default: an empty cache).
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
        """Return whether this search may try more changes: it has time left and has made fewer than MOST_PLANS plans.
        Loops over many rows should call this method too, because they also take time.
        """
        self.is_cut_short = self.is_cut_short or self._plans >= MOST_PLANS or not self._has_time()
        return not self.is_cut_short

    def serves(self, change: Suggestion) -> bool:
        """Return whether `change` would end the wait of the reservation of this search.

        The wait ends in two cases: a plan with the change leases the reservation, or all slots that the reservation
        needs are booting or being given back by other reservations. The result is False for a change that makes the
        rules invalid, for example a second offering of the same name, and when the search has no time left.
        """
        if not self.may_go_on():
            return False
        self._plans += 1
        with suppress(InvalidInputError), self.assuming(change):
            return is_served(plan(self.view, self.rules, self.now, self._cache), self.reservation.id)
        return False

    @contextmanager
    def assuming(self, change: Suggestion) -> Iterator[None]:
        """Apply `change` to the view and the rules of this search for the `with` block, and undo it afterwards.

        Raises InvalidInputError if the change makes the rules invalid.
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
        """Return the first of the given changes that would end the reservation's wait. Return None if no change does,
        or if the time of the search is over.
        """
        for change in changes:
            if self.serves(change):
                return change
            if self.is_cut_short:
                return None
        return None

    def find_least(self, make: Callable[[int], Suggestion], most: int) -> Suggestion | None:
        """Return the change `make(n)` with the smallest `n` from 1 to `most` that would end the reservation's wait.
        Return None if `make(most)` does not end it, or if the time of the search is over.
        """
        if most < 1 or not self.serves(make(most)):
            return None
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.serves(make(middle)) else (middle, high)
        return None if self.is_cut_short else make(high)

    def find_least_of(self, makers: Iterable[Callable[[int], Suggestion]], most: int) -> Suggestion | None:
        """Call `find_least` with each of the functions `makers` in order, and return its first change. Each function
        `make` returns a change of the size `n` for `make(n)`. The change found is the one with the smallest `n` from 1
        to `most` that would end the reservation's wait. Return None if no function makes such a change, or if the time
        of the search is over.
        """
        for make in makers:
            change = self.find_least(make, most)
            if change is not None or self.is_cut_short:
                return change
        return None


Kind = Callable[[Search], Suggestion | None]


def suggest_change(search: Search, kinds: Iterable[Kind]) -> Suggestion | None:
    """Call the functions `kinds` in order, each of which searches for one kind of change. Return the first change found
    that would end the wait of the search's reservation.

    Return None if the reservation is not pending, if the next tick serves it without a change, or if no change was
    found in time (then `search.is_cut_short` is true).
    """
    nothing = Suggestion(kind="nothing", text="")
    if search.reservation.phase != "pending" or search.serves(nothing):
        return None
    return find_of_kinds(search, kinds)


def find_of_kinds(search: Search, kinds: Iterable[Kind]) -> Suggestion | None:
    """Call the functions `kinds` in order, each of which searches for one kind of change. Return the first change found
    that would end the reservation's wait. Return None if no function finds one, or if the time of the search is over.
    """
    for kind in kinds:
        found = kind(search)
        if found is not None or search.is_cut_short:
            return found
    return None


def is_served(outcome: Plan, name: str) -> bool:
    """Return whether the plan serves the reservation `name`: the plan leases it, or all slots that it needs are booting
    or being given back by preempted reservations.
    """
    if any(isinstance(each, Assign | Preempt) and each.reservation == name for each in outcome.decisions):
        return True
    return any(each.reservation == name and each.code == "booting" for each in outcome.waiting)


def change_rules(rules: Rules, config: Mapping[str, Any]) -> Rules:
    """Return the rules with the changed keys in `config`. Raises InvalidInputError if these rules are invalid."""
    if not config:
        return rules
    changed = read_rules(merge_rules(rules.model_dump(exclude_unset=True), dict(config)))
    return changed.with_spending(rules.spending)


def describe_change(view: View, change: Suggestion) -> dict[str, Any]:
    """Return a suggested change as JSON values: `kind`, `text`, `wait_seconds` and `actions`. The actions have the
    format of a scenario's timeline; carrying them out in order makes the change.
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
        names = [each for each in row.__struct_fields__ if getattr(row, each) != getattr(known, each, None)]
        changed = {name: msgspec.json.decode(msgspec.json.encode(getattr(row, name))) for name in names}
        yield {"account": {"id": row.id, **changed}}
    elif isinstance(row, Slot) and (known is not None or row.state == "ready"):
        # New empty slots need no action: they come with the rules.
        if known is not None and row == msgspec.structs.replace(known, cordoned=False):
            yield {"uncordon": row.id}
        else:
            yield {"slot": describe_slot_record(row, view.leases_of(row.id))}


@contextmanager
def _changed(view: View, rows: Iterable[Row]) -> Iterator[None]:
    """Put these rows into the view for the `with` block. Afterwards the view has its former rows again."""
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


MOST_OPENERS: Final = 3
"""The most changes that `combine_two` tries from each function in `openers`, as the first change of a pair. The number
is small because the search for a second change, which takes long, is repeated for each first change.
"""
TOGETHER: Final = "two changes: "
Candidates = Callable[[Search], Iterable[Suggestion]]


def combine_two(search: Search, openers: Sequence[Candidates], kinds: Sequence[Kind]) -> Suggestion | None:
    """Return one suggestion that makes two changes, which together end the reservation's wait. Return None if no two
    changes do, or if the time of the search is over.

    Each function in `openers` lists changes. The first MOST_OPENERS changes of each list are tried as first change, one
    after the other. While a first change is applied to the view and the rules, the functions `kinds` search the second
    change. If the second change alone ends the wait, only the second change is returned.
    """
    # The changes of a kind are listed before one of them is tried, because a trial changes the view.
    for first in chain.from_iterable(list(islice(list_changes(search), MOST_OPENERS)) for list_changes in openers):
        second = find_second(search, first, kinds)
        if second is not None:
            # The search beside the first change tries more than the search without it, so the second may suffice alone.
            is_enough = _are_apart(first, second) and search.serves(second)
            return second if is_enough else join(first, second, f"{first.kind} and {second.kind}")
        if search.is_cut_short:
            return None
    return None


def find_second(search: Search, first: Suggestion, kinds: Iterable[Kind]) -> Suggestion | None:
    """Return a change of one of `kinds` that would end the reservation's wait if the change `first` was made before.
    Return None if there is no such change, or if `first` makes the rules invalid.
    """
    with suppress(InvalidInputError), search.assuming(first):
        return find_of_kinds(search, kinds)
    return None


def join(first: Suggestion, second: Suggestion, kind: str) -> Suggestion:
    """Return one suggestion that makes the changes `first` and `second`. `kind`: its kind. If both change the same row
    or key, the value of `second` is used, because `second` was found when `first` was already applied.
    """
    return Suggestion(
        kind=kind,
        text=f"{TOGETHER}{first.text.removeprefix(TOGETHER)}; {second.text.removeprefix(TOGETHER)}",
        rows=tuple({_key_of(row): row for row in (*first.rows, *second.rows)}.values()),
        config=merge_rules(dict(first.config), dict(second.config)),
        wait_seconds=first.wait_seconds + second.wait_seconds,
    )


def _are_apart(first: Suggestion, second: Suggestion) -> bool:
    """Return whether two changes have no row and no key of the rules in common."""
    rows = {_key_of(row) for row in first.rows} & {_key_of(row) for row in second.rows}
    return not rows and not set(_list_keys(first.config)) & set(_list_keys(second.config))


def _key_of(row: Row) -> tuple[type, str]:
    return type(row), row.id


def _list_keys(config: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the path of each changed key in `config`, with dots: like `scheduler.backfill`. If the value of a key is a
    table, the paths of the keys in the table are yielded instead.
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _list_keys(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


MOST_SLOTS_MORE: Final = 64
"""The greatest number of slots that one suggested change adds to a pool."""
MOST_CANDIDATES: Final = 12
"""The most changes that are tried of a kind that has one possible change for each slot, host or lease holder. Example:
a pool has 500 cordoned slots, and only the first 12 are tried.
"""


def list_pools(search: Search) -> list[tuple[str, Pool]]:
    """Return (name, rules) of each pool that may serve the reservation of this search, in configured order."""
    request = search.reservation.request
    return [(name, search.rules.pools[name]) for name in search.rules.serving_pools(request.pool, request.system)]


def list_slots(search: Search) -> Iterable[tuple[Slot, Pool]]:
    """Yield (slot, pool) for the ready slots of the pools that may serve the reservation of this search. The slots are
    sorted by the name of their pool, then by number.
    """
    pools = dict(list_pools(search))
    for slot in sorted(search.view.slots.values(), key=lambda each: (each.pool, len(each.id), each.id)):
        if slot.pool in pools and slot.state == "ready":
            yield slot, pools[slot.pool]


def list_hosts(search: Search) -> Iterable[tuple[Slot, Pool]]:
    """Return (slot, pool) for the ready slots of the static pools that may serve the reservation of this search.

    Only hosts are listed because an operator can give a host more resources and other labels, and cannot change an EC2
    machine in this way.
    """
    return ((slot, pool) for slot, pool in list_slots(search) if not pool.is_elastic)


def count_wanted(search: Search) -> int:
    """Return how many slots all pending reservations together could use, at most MOST_SLOTS_MORE: one for each
    essential instance. All pending reservations count, because earlier ones in the queue take new slots first.
    """
    wanted = 0
    for each in search.view.by_phase["pending"].values():
        wanted += sum(component.count for component in each.request.components if component.kind == "essential")
        if wanted >= MOST_SLOTS_MORE:
            return MOST_SLOTS_MORE
    return wanted


def list_components(reservation: Reservation) -> list[Component]:
    """Return the components of the reservation whose kind is `essential`."""
    return [each for each in reservation.request.components if each.kind == "essential"]


def required_labels(reservation: Reservation, component: Component) -> Labels:
    """Return the labels that a slot must have for an instance of this component of the reservation."""
    return {**reservation.request.labels, **component.labels}


def find_lacking(labels: Labels, required: Labels) -> dict[str, str]:
    """Return the labels in `required` that a slot with the labels `labels` does not have, or has with another value."""
    return {name: value for name, value in required.items() if labels.get(name) != value}


def describe_labels(labels: Labels) -> str:
    """Return labels as a text: `name=value, name=value`, sorted by name."""
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))
