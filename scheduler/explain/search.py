"""Search for the smallest change of rows or rules that would end the wait of a pending reservation.

Each change is applied to the view or the rules as a trial, smallest change first, and `plan()` plans the result. The
first change under which the plan serves the reservation is the suggestion. The search has no scheduling rules of its
own that could differ from the tick's. The kinds of change are in `changes/`; this module imports none of them.

If no single change suffices, two changes are tried together, for example an offering and a higher `max_slots`. The
first change is applied, and then the second one is searched like a single change. The last functions of this module
list the pools and slots that may serve the reservation.

A change names only what exists. Neither the size nor a label of a machine is changed, because rules and rows describe
machines and do not make them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from math import inf
from typing import Any, Final, Literal

import msgspec

from scheduler.model.accounts import Account
from scheduler.model.decisions import Assign, Decision, Drain, Launch, Plan, Preempt, Requeue, Start, Terminate
from scheduler.model.launch_backoff import is_trial
from scheduler.model.machines import Offering
from scheduler.model.pools import Pool, slot_ids
from scheduler.model.quota_classes import is_limited_by, quota_subject
from scheduler.model.reservations import Component, Lease, Reservation
from scheduler.model.resources import Labels, Resources
from scheduler.model.rules import InForce, Rules, merge_rules, read_rules
from scheduler.model.slots import Slot, without_machine
from scheduler.model.transitions import IN_FLIGHT
from scheduler.model.validation import InvalidInputError
from scheduler.model.view import KINDS, Change, Gone, Row, View
from scheduler.policy.lifecycle.timers import has_timed_out, is_silent
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from scheduler.policy.scaling.offerings import list_choices

MOST_PLANS: Final = 150
"""The greatest number of plans that one search for a change makes."""
MOST_MOMENTS: Final = 5
"""At how many moments between the start of machines and the longest time that they need the search looks whether they
still serve the reservation.
"""
MOST_STAGES: Final = 12
"""The most plans that are made for machines that boot, before they are ready. A change under which the last of them
launches still is not offered, because it is not known which reservation gets these machines.
"""


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


_Started = Literal["booting", "ready"]
_NOTHING: Final = Suggestion(kind="wait", text="")


@dataclass(frozen=True)
class Applied:
    """The rules as they were applied, which a change of the rules changes, and what they do not contain."""

    rules: Rules
    put_in_force: Callable[[Rules, float], InForce] = lambda rules, _now: InForce(rules, inf)
    """A function that returns the rules in force at a time, from rules as applied: with the types and prices of the
    market and the limits of open schedules. The time and `until` of the result are cluster time.
    """
    list_for_sale: Callable[[str], Sequence[Offering]] = lambda _pool: ()
    """A function that lists the instance types of the catalogue that the pool of a name could launch too, with their
    prices.
    """


class Search:
    """One search for a change that would end the wait of one pending reservation. After the search the view is as
    before.

    The search calls `has_time` before each plan. When `has_time` returns False, or after MOST_PLANS plans, the search
    stops and sets `is_cut_short`. `cache`: the plan cache of the view (default: an empty cache). `rules`: the rules in
    force. `applied`: the rules from which these were made (default: `rules`).
    """

    def __init__(
        self,
        view: View,
        rules: Rules,
        reservation: Reservation,
        now: float,
        has_time: Callable[[], bool] = lambda: True,
        cache: PlanCache | None = None,
        applied: Applied | None = None,
    ) -> None:
        self.view, self.rules, self.reservation, self.now = view, rules, reservation, now
        self.applied = Applied(rules) if applied is None else applied
        self._until = self.applied.put_in_force(self.applied.rules, now).until
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
        with suppress(InvalidInputError), self.assuming(change):
            return is_served(self._plan(self.rules), self.reservation.id)
        return False

    def lasts(self, change: Suggestion) -> bool:
        """Return whether `change` serves the reservation, and still does when the machines are ready that boot or are
        launched for it: at once, after the longest start, and at the next moments between them at which something is
        due. In this time other reservations may take them: slots and back-offs become free, the starvation guard keeps
        slots, and the queue `dynsize` changes its order.
        """
        if not self._lasts(change):
            return False
        leaving = self._list_leaving()
        # A wait may be longer than machines need that boot, or have that end now. After it both is possible: they boot
        # still, or others have leased them; they are still there, or not.
        if change.wait_seconds:
            if not self._lasts(change, is_quick=True):
                return False
            if leaving and not self._lasts(change, ended=leaving):
                return False
        # While machines boot, the work of machines that end may return to the queue before these are gone.
        return not leaving or self._lasts(change, returning=leaving)

    def _lasts(
        self,
        change: Suggestion,
        *,
        ended: Sequence[Decision] = (),
        returning: Sequence[Decision] = (),
        is_quick: bool = False,
    ) -> bool:
        if not self.may_go_on():
            return False
        with suppress(InvalidInputError), ExitStack() as stages:
            if ended:
                stages.enter_context(_changed(self.view, [*_list_ending(self.view, self.rules, ended, self.now)]))
            # People make the change before the wait.
            stages.enter_context(self.assuming(msgspec.structs.replace(change, wait_seconds=0.0)))
            if change.wait_seconds and not self._wait(change.wait_seconds, stages, is_quick=is_quick):
                return False
            outcome = self._plan(self.rules)
            if not is_booting(outcome, self.reservation.id):
                return is_served(outcome, self.reservation.id)
            if returning:
                ready = list_started(self.view, self.rules, outcome, self.now, "ready")
                returned = _list_returned(self.view, returning, self.now)
                leased = _list_leased(self.view, outcome, self.now, self.reservation.id)
                stages.enter_context(_changed(self.view, [*ready, *returned, *leased]))
                return is_served(self._plan(self.rules), self.reservation.id)
            starts = (each.launch_timeout + each.boot_timeout + each.binding_timeout for _, each in list_pools(self))
            longest = self.now + max(starts, default=0.0)
            for moment in range(MOST_MOMENTS + 1):
                last = self._boot(outcome, stages)
                if last is None or not self._is_served_by_ready(last):
                    return False
                if self.now >= longest:
                    return True
                later = self._find_due(last, longest) if moment < MOST_MOMENTS - 1 else longest
                stages.enter_context(self._assuming(_NOTHING, later))
                outcome = self._plan(self.rules)
        return False

    def _wait(self, seconds: float, stages: ExitStack, *, is_quick: bool) -> bool:
        """Let time pass on `stages`. Return False if others launch in this time, and it is not known what they get.
        `is_quick`: machines need no time to start, and others lease them within the wait.
        """
        end = self.now + seconds
        for _ in range(MOST_MOMENTS):
            last = self._boot(self._plan(self.rules), stages, "ready" if is_quick else "booting")
            if last is None:
                return False
            due = self._find_due(last, end)
            if due == end:
                break
            stages.enter_context(self._assuming(_NOTHING, due))
        stages.enter_context(self._assuming(_NOTHING, end))
        return True

    def _find_due(self, outcome: Plan, end: float) -> float:
        """Return when a plan may decide otherwise than `outcome`, because something is due or a schedule opens or
        closes; at the latest `end`.
        """
        return min(end, self._until, end if outcome.wake_at is None else outcome.wake_at)

    def _list_leaving(self) -> list[Decision]:
        """Return decisions that end the machines of EC2 that drain or terminate, and the work on them."""
        pools = {name for name, pool in self.rules.pools.items() if pool.is_elastic}
        slots = self.view.slots.values()
        leaving = {each.id for each in slots if each.pool in pools and each.state in {"draining", "terminating"}}
        rows = self.view.reservations.values()
        lost = [row.id for row in rows if row.phase != "pending" and any(each.slot in leaving for each in row.leases)]
        return [
            *(Terminate(slot=name, reason="drained") for name in sorted(leaving)),
            *(Requeue(reservation=name, reason="slot_gone") for name in sorted(lost)),
        ]

    def _is_served_by_ready(self, last: Plan) -> bool:
        """Return whether the plan `last` serves the reservation, and still does when the machines are ready that boot
        under it: all of them, or those of one kind before the others.
        """
        if not is_served(last, self.reservation.id):
            return False
        started = [*list_started(self.view, self.rules, last, self.now, "ready")]
        slots = [each for each in started if isinstance(each, Slot)]
        kinds = {(each.pool, each.offering) for each in slots}
        late: list[set[str]] = [set()]
        if len(kinds) > 1:
            late += [
                {each.id for each in slots if (each.pool, each.offering) != kind} for kind in sorted(kinds, key=str)
            ]
        for ids in late:
            with _changed(self.view, [each for each in started if each.id not in ids]):
                if not is_served(self._plan(self.rules), self.reservation.id):
                    return False
        return True

    def _boot(self, outcome: Plan, stages: ExitStack, state: _Started = "booting") -> Plan | None:
        """Leave the machines in this state on `stages` that the plan `outcome` launches, and those of the plans after
        it, until one launches none. Return that plan; None if there are too many stages.
        """
        ending = [*_list_ending(self.view, self.rules, outcome.decisions, self.now)]
        for _ in range(MOST_STAGES):
            # While machines boot, slots whose machines end, and more of the others, are launched for earlier
            # reservations, which then take machines that were launched for this one.
            left = IN_FLIGHT if state == "ready" else {"launching"}
            is_left = any(each.state in left for each in self.view.slots.values())
            if not ending and not is_left and not _launches(outcome):
                break
            # What is leased at once stays where it is when the machines are ready.
            leased = _list_leased(self.view, outcome, self.now, self.reservation.id)
            rows = [*list_started(self.view, self.rules, outcome, self.now, state), *ending, *leased]
            stages.enter_context(_changed(self.view, rows))
            outcome = self._plan(self.rules)
            ending = [*_list_ending(self.view, self.rules, outcome.decisions, self.now)]
        return None if _launches(outcome) else outcome

    def _plan(self, rules: Rules) -> Plan:
        self._plans += 1
        return plan(self.view, rules, self.now, self._cache)

    def assuming(self, change: Suggestion) -> AbstractContextManager[None]:
        """Apply `change` to the view and the rules of this search for the `with` block, and undo it afterwards.

        Raises InvalidInputError if the change makes the rules invalid.
        """
        return self._assuming(change, self.now + change.wait_seconds)

    @contextmanager
    def _assuming(self, change: Suggestion, now: float) -> Iterator[None]:
        before = self.applied, self.rules, self._until, self.reservation, self.now
        applied, rules, until = self.applied, self.rules, self._until
        if change.config or now >= until:
            applied = replace(applied, rules=change_rules(applied.rules, change.config))
            found = applied.put_in_force(applied.rules, now)
            rules, until = found.rules.with_spending(rules.spending), found.until
        rows: tuple[Change, ...] = change.rows
        if change.config:
            dropped = [
                Gone("slots", slot.id, slot.version + 1)
                for slot in self._surplus
                if slot.id in self.view.slots and slot.id not in slot_ids(slot.pool, applied.rules.pools[slot.pool])
            ]
            rows = (*dropped, *rows)
        if now > self.now:
            rows = (*_list_kept_up(self.view, self.rules, self.now, now), *rows)
        with _changed(self.view, rows):
            self.applied, self.rules, self._until, self.now = applied, rules, until, now
            self.reservation = self.view.reservations.get(self.reservation.id, self.reservation)
            try:
                yield
            finally:
                self.applied, self.rules, self._until, self.reservation, self.now = before

    @cached_property
    def _surplus(self) -> list[Slot]:
        """The empty slots that have no number within the limits of their EC2 pool: any change of the rules drops them
        (operations/rules/apply.py, `fit_slots`).
        """
        pools = {name: pool for name, pool in self.applied.rules.pools.items() if pool.is_elastic}
        listed = {each for name, pool in pools.items() for each in slot_ids(name, pool)}
        slots = self.view.slots.values()
        return [each for each in slots if each.state == "empty" and each.pool in pools and each.id not in listed]

    def find_first(self, changes: Iterable[Suggestion]) -> Suggestion | None:
        """Return the first of the given changes that would end the reservation's wait. Return None if no change does,
        or if the time of the search is over.
        """
        return self.find_any(each if self.serves(each) and self.lasts(each) else None for each in changes)

    def find_any(self, found: Iterable[Suggestion | None]) -> Suggestion | None:
        for change in found:
            if change is not None or self.is_cut_short:
                return change
        return None

    def find_least(self, make: Callable[[int], Suggestion], most: int) -> Suggestion | None:
        """Return the change `make(n)` with the smallest `n` from 1 to `most` that would end the reservation's wait.
        Return None if `make(most)` does not end it, or if the time of the search is over.
        """
        if most < 1 or not self.serves(make(most)):
            return None
        least = _bisect(lambda number: self.serves(make(number)), 0, most)
        if not self.lasts(make(least)):
            if least == most or not self.lasts(make(most)):
                return None
            least = _bisect(lambda number: self.lasts(make(number)), least, most)
        return None if self.is_cut_short else make(least)

    def find_least_of(self, makers: Iterable[Callable[[int], Suggestion]], most: int) -> Suggestion | None:
        """Call `find_least` with each of the functions `makers` in order, and return its first change. Each function
        `make` returns a change of the size `n` for `make(n)`. The change found is the one with the smallest `n` from 1
        to `most` that would end the reservation's wait. Return None if no function makes such a change, or if the time
        of the search is over.
        """
        return self.find_any(self.find_least(make, most) for make in makers)


def _bisect(is_enough: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest number above `low` that is enough. `high` is enough, and `low` is not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


Kind = Callable[[Search], Suggestion | None]


def suggest_change(search: Search, kinds: Iterable[Kind]) -> Suggestion | None:
    """Call the functions `kinds` in order, each of which searches for one kind of change. Return the first change found
    that would end the wait of the search's reservation.

    Return None if the reservation is not pending, if the next tick serves it without a change, or if no change was
    found in time (then `search.is_cut_short` is true).
    """
    if search.reservation.phase != "pending" or search.serves(_NOTHING):
        return None
    return search.find_any(kind(search) for kind in kinds)


def is_served(outcome: Plan, name: str) -> bool:
    """Return whether the plan serves the reservation `name`: the plan leases it, or all slots that it needs are booting
    or being given back by preempted reservations.
    """
    if any(isinstance(each, Assign | Preempt) and each.reservation == name for each in outcome.decisions):
        return True
    return is_booting(outcome, name)


def is_booting(outcome: Plan, name: str) -> bool:
    """Return whether the reservation `name` waits, by the plan, for slots that are booting or being given back."""
    return any(each.reservation == name and each.code == "booting" for each in outcome.waiting)


def _list_kept_up(view: View, rules: Rules, now: float, later: float) -> Iterator[Row]:
    """Yield the rows that would be overdue at `later` and are not at `now`, as they are if reservations are renewed,
    hosts report, and machines in flight need longer. A wait that helps only if one of them fails is no way to a lease.
    """
    for row in view.mortal.find_due(later)[0]:
        if row.expires_at is not None and row.expires_at > now:
            yield msgspec.structs.replace(row, expires_at=row.expires_at + later - now)
    for slot in list(view.slots.values()):
        pool = rules.pools.get(slot.pool)
        if is_silent(slot, pool, later) and not is_silent(slot, pool, now):
            yield msgspec.structs.replace(slot, last_seen=later)
        elif slot.state in IN_FLIGHT and has_timed_out(slot, pool, later) and not has_timed_out(slot, pool, now):
            yield msgspec.structs.replace(slot, since=later)


def _launches(outcome: Plan) -> bool:
    return any(isinstance(each, Launch | Start) for each in outcome.decisions)


def list_started(view: View, rules: Rules, outcome: Plan, now: float, state: _Started) -> Iterator[Change]:
    """Yield the slots that are in flight after the plan `outcome`, as they are when their machines have this state, and
    the back-offs of EC2 quotas that the success of their launches ends.
    """
    yield from _list_over_quotas(view, rules, outcome, now)
    ended = {each.slot for each in outcome.decisions if isinstance(each, Terminate | Drain)}
    fields: dict[str, Any] = {"state": state, "since": now, "last_seen": now, "power": None}
    for slot in list(view.slots.values()):
        if slot.state in IN_FLIGHT and slot.id not in ended:
            yield msgspec.structs.replace(slot, **fields, idle_since=now if state == "ready" else None)
    for each in outcome.decisions:
        if isinstance(each, Launch | Start) and (known := view.slots.get(each.slot)) is not None:
            pool, is_launch = rules.pools[each.pool], isinstance(each, Launch)
            # A started machine keeps its epoch and its uses.
            own: dict[str, Any] = {"launch_reason": each.reason, "launched_for": each.account}
            if is_launch:
                own |= {"epoch": known.epoch + 1, "launched_at": now, "launch_digest": pool.launch_digest}
            choice = next((one for one in list_choices(pool) if one.key == each.offering), None)
            if choice is not None and (is_launch or each.offering != known.offering):
                held = None if choice.capacity is None else dict(choice.capacity)
                own |= {"offering": choice.key, "market": choice.market or None, "price": choice.price}
                own |= {"resources": held, "labels": dict(choice.labels)}
            yield msgspec.structs.replace(known, **fields, **own, idle_since=now if state == "ready" else None)


def _list_over_quotas(view: View, rules: Rules, outcome: Plan, now: float) -> Iterator[Gone]:
    """Yield the back-offs of quotas that were over when the launches were decided. Each launch is a trial then."""
    trials: list[tuple[str, str | None, str, float]] = [
        (each.pool, each.offering, each.market or "", each.since)
        for each in view.slots.values()
        if each.state == "launching"
    ]
    for each in outcome.decisions:
        if isinstance(each, Launch):
            market = next((one.market for one in list_choices(rules.pools[each.pool]) if one.key == each.offering), "")
            trials.append((each.pool, each.offering, market, now))
    for hold in list(view.holds.values()):
        if hold.kind == "quota" and any(
            hold.pool == name
            and is_trial(hold, since)
            and name in rules.pools
            and is_limited_by(quota_subject(rules.pools[name], key, market), hold.subject)
            for name, key, market, since in trials
        ):
            yield Gone("holds", hold.id, hold.version + 1)


def _list_ending(view: View, rules: Rules, decisions: Iterable[Decision], now: float) -> Iterator[Row]:
    """Yield the EC2 slots that these decisions drain, as they are when they drain, those whose machines end, as they
    are when these machines are gone, and the reservations that return to the queue, as they are there.
    """
    yield from _list_returned(view, decisions, now)
    drained = {each.slot: each.reason for each in decisions if isinstance(each, Drain)}
    ended = {each.slot for each in decisions if isinstance(each, Terminate)}
    for slot in list(view.slots.values()):
        if slot.id in ended or slot.state == "terminating":
            yield msgspec.structs.replace(slot, state="empty", **without_machine(slot))
        elif slot.id in drained and slot.state == "ready" and rules.pools[slot.pool].is_elastic:
            yield msgspec.structs.replace(slot, state="draining", drain_reason=drained[slot.id], idle_since=None)


def _list_leased(view: View, outcome: Plan, now: float, without: str) -> Iterator[Row]:
    """Yield the reservations that the plan `outcome` assigns, except `without`, as they are then, and their slots."""
    uses: Counter[str] = Counter()
    for each in outcome.decisions:
        if not isinstance(each, Assign) or each.reservation == without:
            continue
        fields: dict[str, Any] = {"assigned_at": now, "confirmed_at": now, "token": 1}
        if each.level is not None:
            fields |= {"level": each.level, "charged_at": now}
        leases = tuple(
            Lease(component=one.component, slot=one.slot, epoch=one.epoch, resources=one.resources, **fields)
            for one in each.leases
        )
        row = view.reservations[each.reservation]
        yield msgspec.structs.replace(row, phase="leased", leases=leases, leased_at=now, confirmed_at=now)
        uses.update(one.slot for one in leases)
    for slot, count in uses.items():
        known = view.slots[slot]
        yield msgspec.structs.replace(known, idle_since=None, uses=known.uses + count)


def _list_returned(view: View, decisions: Iterable[Decision], now: float) -> Iterator[Reservation]:
    for each in decisions:
        row = view.reservations.get(each.reservation) if isinstance(each, Requeue) else None
        if row is not None and row.phase != "pending":
            fields: dict[str, Any] = {"phase": "pending", "changed_at": now}
            yield msgspec.structs.replace(row, **fields, leases=(), leased_at=None, revoke_by=None)


def change_rules(rules: Rules, config: Mapping[str, Any]) -> Rules:
    """Return the rules with the changed keys in `config`. Raises InvalidInputError if these rules are invalid."""
    return read_rules(merge_rules(rules.model_dump(exclude_unset=True), dict(config))) if config else rules


def describe_change(view: View, change: Suggestion) -> dict[str, Any]:
    """Return a suggested change as JSON values: `kind`, `text`, `wait_seconds`, `actions` and `undo`. The actions have
    the format of a scenario's timeline; carrying them out in order makes the change. `undo`: the actions that reverse
    those of rows, the last one first; a lease that was ended stays ended, and rules are reversed by their history.
    """
    pairs = [pair for row in change.rows for pair in _list_actions(view, row)]
    actions: list[dict[str, Any]] = [{"rules": change.config}] if change.config else []
    actions += [action for action, _ in pairs]
    return {
        "kind": change.kind,
        "text": change.text,
        "wait_seconds": change.wait_seconds,
        "actions": actions,
        "undo": [undo for _, undo in reversed(pairs) if undo is not None],
    }


_Action = dict[str, Any]


def _list_actions(view: View, row: Row) -> Iterator[tuple[_Action, _Action | None]]:
    """Yield (action, action that reverses it; None: nothing does) for each action that makes `row` as it is given."""
    known = view.find(row)
    if isinstance(row, Reservation) and isinstance(known, Reservation):
        if row.phase != known.phase:
            yield {"release": row.id}, None
        if row.suspended != known.suspended:
            yield {"resume": row.id}, {"suspend": row.id}
        if row.priority != known.priority:
            yield _set_priority(row), _set_priority(known)
    elif isinstance(row, Account) and isinstance(known, Account):
        names = [each for each in row.__struct_fields__ if getattr(row, each) != getattr(known, each)]
        yield _set_account(row, names), _set_account(known, names)
    elif isinstance(row, Slot) and known is not None:
        # New empty slots need no action: they come with the rules.
        yield {"uncordon": row.id}, {"cordon": row.id}


def _set_priority(row: Reservation) -> _Action:
    return {"priority": {"reservation": row.id, "priority": row.priority}}


def _set_account(row: Account, names: Iterable[str]) -> _Action:
    fields = {name: msgspec.json.decode(msgspec.json.encode(getattr(row, name))) for name in names}
    return {"account": {"id": row.id, **fields}}


@contextmanager
def _changed(view: View, changes: Iterable[Change]) -> Iterator[None]:
    """Put these changes of rows into the view for the `with` block. Afterwards the view has its former rows again."""
    back: list[Change] = []
    try:
        for change in changes:
            kind = change.kind if isinstance(change, Gone) else KINDS[type(change)]
            back.append(view.rows(kind).get(change.id) or Gone(kind, change.id, change.version + 1))
            view.apply(change)
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
            if _are_apart(first, second) and search.lasts(second):
                return second
            both = join(first, second, f"{first.kind} and {second.kind}")
            # The second change was searched after the wait, but people make it before.
            if not both.wait_seconds or search.lasts(both):
                return both
        if search.is_cut_short:
            return None
    return None


def find_second(search: Search, first: Suggestion, kinds: Iterable[Kind]) -> Suggestion | None:
    """Return a change of one of `kinds` that would end the reservation's wait if the change `first` was made before.
    Return None if there is no such change, or if `first` makes the rules invalid.
    """
    with suppress(InvalidInputError), search.assuming(first):
        return search.find_any(kind(search) for kind in kinds)
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
"""The most changes that are tried of a kind that has one possible change for each slot, offering or lease holder.
Example: a pool has 500 cordoned slots, and only the first 12 are tried.
"""


def list_pools(search: Search) -> list[tuple[str, Pool]]:
    """Return (name, rules) of each pool that may serve the reservation of this search, in configured order."""
    row, rules = search.reservation, search.rules
    pools = rules.serving_pools(row.request.pool, row.request.system, needs_agent=row.run is not None)
    return [(name, rules.pools[name]) for name in pools]


def list_slots(search: Search) -> Iterable[tuple[Slot, Pool]]:
    """Yield (slot, pool) for the ready slots of the pools that may serve the reservation of this search. The slots are
    sorted by the name of their pool, then by number.
    """
    pools = dict(list_pools(search))
    for slot in sorted(search.view.slots.values(), key=lambda each: (each.pool, len(each.id), each.id)):
        if slot.pool in pools and slot.state == "ready":
            yield slot, pools[slot.pool]


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
    return {**reservation.request.labels, **component.labels}


def describe_labels(labels: Labels) -> str:
    """Return labels as a text: `name=value, name=value`, sorted by name."""
    return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()))


def describe_amounts(amounts: Resources) -> str:
    """Return amounts of resources as a text: `4 cpus, 8192 memory_mib`, sorted by name, without those that are 0."""
    return ", ".join(f"{amount:.12g} {name}" for name, amount in sorted(amounts.items()) if amount)
