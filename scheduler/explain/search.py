"""Search for the smallest change that would end a wait, by planning what would happen.

Each kind of change is applied to the view or the rules, smallest first, and `plan()` plans the result. A suggestion is
a change under which the plan serves the reservation and no smaller one of its kind does. The search has no rules of its
own that could differ from the tick's. The kinds are in `changes/`; this module depends on none of them.

If no single change suffices, two are tried together, for example a label and a larger slot: the first one is assumed,
and the second one is searched like a single one. The last functions list the pools and slots that may serve a
reservation: candidates for changes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import Any, Final

import msgspec

from scheduler.model.accounts import Account
from scheduler.model.decisions import Assign, Plan, Preempt
from scheduler.model.labels import Labels
from scheduler.model.reservations import Component, Reservation
from scheduler.model.rules import Pool, Rules, merge_rules, read_rules
from scheduler.model.slot_records import describe_slot_record
from scheduler.model.slots import Slot
from scheduler.model.validation import InvalidInputError
from scheduler.model.view import KINDS, Change, Gone, Row, View
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache

MOST_PLANS: Final = 150
"""The most times that one search for a change plans."""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """One change of rows and rules that would end a reservation's wait, with the text that suggests it."""

    kind: str
    text: str
    rows: tuple[Row, ...] = ()
    """The changed rows (reservations, slots, accounts), which replace those of the same id."""
    config: Mapping[str, Any] = {}
    """The changed keys of the rules, as a partial config."""
    wait_seconds: float = 0.0
    """Seconds after which the wait ends by itself; 0 for a change that an operator makes."""


class Search:
    """Tries changes that could end the wait of one pending reservation. The view is unchanged afterwards.

    `has_time` is called before each plan. Once it returns False, or after MOST_PLANS plans, nothing more is tried and
    `is_cut_short` is true. `cache`: the plan cache of the view (default: an empty one).
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
        """Return whether this search may try more changes: its time is not over and it has made fewer than MOST_PLANS
        plans. Loops over many rows call it as well.
        """
        self.is_cut_short = self.is_cut_short or self._plans >= MOST_PLANS or not self._has_time()
        return not self.is_cut_short

    def serves(self, change: Suggestion) -> bool:
        """Return whether `change` would end the wait: a plan with it leases the searched reservation, or all slots that
        the reservation needs are booting or being given back.

        A change that makes the rules invalid, for example a second offering of the same name, ends no wait.
        """
        if not self.may_go_on():
            return False
        self._plans += 1
        with suppress(InvalidInputError), self.assuming(change):
            return is_served(plan(self.view, self.rules, self.now, self._cache), self.reservation.id)
        return False

    @contextmanager
    def assuming(self, change: Suggestion) -> Iterator[None]:
        """Apply `change` to the view and the rules of this search for the `with` block.

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
        """Return the first of the given changes that would end the reservation's wait; None if none does or time is
        over.
        """
        for change in changes:
            if self.serves(change):
                return change
            if self.is_cut_short:
                return None
        return None

    def find_least(self, make: Callable[[int], Suggestion], most: int) -> Suggestion | None:
        """Return the change `make(n)` with the least `n` from 1 to `most` that would end the reservation's wait. None
        if `make(most)` does not end it or time is over.
        """
        if most < 1 or not self.serves(make(most)):
            return None
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.serves(make(middle)) else (middle, high)
        return None if self.is_cut_short else make(high)

    def find_least_of(self, makers: Iterable[Callable[[int], Suggestion]], most: int) -> Suggestion | None:
        """Return the least change (`make(n)` with the least `n`) of the first of these makers that can end the
        reservation's wait. None if no maker can or time is over.
        """
        for make in makers:
            change = self.find_least(make, most)
            if change is not None or self.is_cut_short:
                return change
        return None


Kind = Callable[[Search], Suggestion | None]


def suggest_change(search: Search, kinds: Iterable[Kind]) -> Suggestion | None:
    """Return a change of the first of these kinds that would end the wait of the search's reservation.

    None if the reservation is not pending or is served without a change, or if no such change exists or was found in
    time (`search.is_cut_short`).
    """
    nothing = Suggestion(kind="nothing", text="")
    if search.reservation.phase != "pending" or search.serves(nothing):
        return None
    return find_of_kinds(search, kinds)


def find_of_kinds(search: Search, kinds: Iterable[Kind]) -> Suggestion | None:
    """Return the first change that one of these kinds finds to end the reservation's wait; None if none does or time is
    over.
    """
    for kind in kinds:
        found = kind(search)
        if found is not None or search.is_cut_short:
            return found
    return None


def is_served(outcome: Plan, name: str) -> bool:
    """Return whether the plan leases the reservation `name`, or all that it needs is on the way: slots that boot, or
    slots that preempted reservations give back.
    """
    if any(isinstance(each, Assign | Preempt) and each.reservation == name for each in outcome.decisions):
        return True
    return any(each.reservation == name and each.code == "booting" for each in outcome.waiting)


def change_rules(rules: Rules, config: Mapping[str, Any]) -> Rules:
    """Return the rules merged with a partial config. Raises InvalidInputError if the result is invalid."""
    if not config:
        return rules
    return read_rules(merge_rules(rules.model_dump(exclude_unset=True), dict(config)))


def describe_change(view: View, change: Suggestion) -> dict[str, Any]:
    """Return a suggested change as a document: `kind`, `text`, `wait_seconds`, and `actions` as in a scenario's
    timeline. The actions, played in their order, make the change.
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
    """Put the given rows into the view for the `with` block; the former rows are restored afterwards."""
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
"""The most changes of one kind that are tried as the first of two changes together: each costs a whole search."""
TOGETHER: Final = "only together: "
Candidates = Callable[[Search], Iterable[Suggestion]]


def combine_two(search: Search, openers: Sequence[Candidates], kinds: Sequence[Kind]) -> Suggestion | None:
    """Return two changes that together end the reservation's wait: one listed by `openers`, then one of `kinds`,
    searched while the first is assumed. Returns the second change alone if it suffices; None if no pair is found or
    time is over.
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
    """Return the change of one of `kinds` that would end the reservation's wait if the change `first` was made before.
    None if there is none or `first` makes the rules invalid.
    """
    with suppress(InvalidInputError), search.assuming(first):
        return find_of_kinds(search, kinds)
    return None


def join(first: Suggestion, second: Suggestion, kind: str) -> Suggestion:
    """Return one change that makes both `first` and `second`. If both change the same row or key, that of `second` is
    used, which already contains the change of `first`.
    """
    return Suggestion(
        kind=kind,
        text=f"{TOGETHER}{first.text.removeprefix(TOGETHER)}; {second.text.removeprefix(TOGETHER)}",
        rows=tuple({_key_of(row): row for row in (*first.rows, *second.rows)}.values()),
        config=merge_rules(dict(first.config), dict(second.config)),
        wait_seconds=first.wait_seconds + second.wait_seconds,
    )


def _are_apart(first: Suggestion, second: Suggestion) -> bool:
    """Return whether two changes change different rows and different keys of the rules."""
    rows = {_key_of(row) for row in first.rows} & {_key_of(row) for row in second.rows}
    return not rows and not set(_list_keys(first.config)) & set(_list_keys(second.config))


def _key_of(row: Row) -> tuple[type, str]:
    return type(row), row.id


def _list_keys(config: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the path of each key in a partial config whose value is not a table."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _list_keys(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


MOST_SLOTS_MORE: Final = 64
"""The most slots that a suggested change adds."""
MOST_CANDIDATES: Final = 12
"""The most changes of one kind that are tried if there could be one for each slot."""


def list_pools(search: Search) -> list[tuple[str, Pool]]:
    """Return name and rules of each pool that may serve the searched reservation, in configured order."""
    request = search.reservation.request
    return [(name, search.rules.pools[name]) for name in search.rules.serving_pools(request.pool, request.system)]


def list_slots(search: Search) -> Iterable[tuple[Slot, Pool]]:
    """Yield the ready slots of the pools that may serve the searched reservation, by pool and number."""
    pools = dict(list_pools(search))
    for slot in sorted(search.view.slots.values(), key=lambda each: (each.pool, len(each.id), each.id)):
        if slot.pool in pools and slot.state == "ready":
            yield slot, pools[slot.pool]


def list_hosts(search: Search) -> Iterable[tuple[Slot, Pool]]:
    """Return the ready slots of those static pools that may serve the searched reservation.

    An operator can give a host more resources and other labels; an EC2 machine stays as it was launched.
    """
    return ((slot, pool) for slot, pool in list_slots(search) if not pool.is_elastic)


def count_wanted(search: Search) -> int:
    """Return how many slots all pending reservations could use, at most MOST_SLOTS_MORE. Reservations earlier in the
    queue than the searched one take theirs first.
    """
    wanted = 0
    for each in search.view.by_phase["pending"].values():
        wanted += sum(component.count for component in each.request.components if component.kind == "essential")
        if wanted >= MOST_SLOTS_MORE:
            return MOST_SLOTS_MORE
    return wanted


def list_components(reservation: Reservation) -> list[Component]:
    """Return the essential components of the searched reservation."""
    return [each for each in reservation.request.components if each.kind == "essential"]


def required_labels(reservation: Reservation, component: Component) -> Labels:
    """Return the labels that a slot must have for an instance of this component of the reservation."""
    return {**reservation.request.labels, **component.labels}


def find_lacking(labels: Labels, required: Labels) -> dict[str, str]:
    """Return those of the `required` labels that a slot with the given labels lacks or has with another value."""
    return {name: value for name, value in required.items() if labels.get(name) != value}


def describe_labels(labels: Labels) -> str:
    """Return labels as text: `name=value, ...`."""
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))
