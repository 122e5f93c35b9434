"""The pending groups of one cycle (reservations of one account with equal requests), and facts about their requests
that later cycles use again.

Most groups wait for slots that are full. So a cycle examines a group in three cases only: an idle slot meets its
requirements, its account may preempt work, or its account has a limit of its own.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import filterfalse
from typing import cast

from scheduler.model.accounts import FREE, level_of
from scheduler.model.pending_queue import AgedRows
from scheduler.model.reservations import Reservation, Shape
from scheduler.policy.capacity.requests import Demand
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.queueing.order import count_required, group_waiters
from scheduler.policy.quota.account_limits import find_likeness
from scheduler.policy.quota.pending_groups import PendingGroup, Requirements, RequirementsIndex

Payer = str | None
"""The name of an account, or None for no account. In a key with a shape it is the account that the requests name. In a
key with a demand it is the account that pays for the requests.
"""
Key = tuple[Payer, Shape | Demand]
"""The key of a group: (account, shape) if these two alone determine how reservations are placed, else (account,
demand). All reservations of a group have the same key.
"""
SPARE_KEYS = 1_000
"""`KnownRequests` removes all of its facts when they concern more requests than twice the number of pending groups plus
this number.
"""


@dataclass(slots=True)
class _Facts:
    demand: Demand
    labels: int
    required: Requirements
    preferred: Requirements | None


class _Keys:
    """The keys (account, request) of pending groups. They are found in two ways: by account, or by account and by what
    a slot must have for the first instance of the request.
    """

    def __init__(self) -> None:
        self.all: set[Key] = set()
        self.of_payer: defaultdict[Payer, list[Key]] = defaultdict(list)
        self._requiring: defaultdict[Requirements, defaultdict[Payer, list[Key]]] = defaultdict(_make_lists)
        self._preferring: defaultdict[Requirements, defaultdict[Payer, list[Key]]] = defaultdict(_make_lists)

    def add(self, key: Key, facts: _Facts) -> None:
        payer = key[0]
        self.all.add(key)
        self.of_payer[payer].append(key)
        self._requiring[facts.required][payer].append(key)
        if facts.preferred is not None:
            self._preferring[facts.preferred][payer].append(key)

    def list_meeting(self, requirements: Requirements, payers: Collection[Payer], *, preferring: bool) -> Iterator[Key]:
        """Yield the keys of the pending groups of the accounts `payers` whose first instance needs a slot with exactly
        the labels and amounts `requirements`. `preferring`: whether the labels that a group prefers count as needed.
        """
        found = (self._preferring if preferring else self._requiring).get(requirements)
        for payer, keys in found.items() if found else ():
            if payer in payers:
                yield from keys


def _make_lists() -> defaultdict[Payer, list[Key]]:
    return defaultdict(list)


class KnownRequests:
    """Facts about the requests of pending reservations. They are valid while the rules are the same."""

    def __init__(self) -> None:
        self.requirements = RequirementsIndex()
        self.keys = _Keys()
        self._facts: dict[Shape, _Facts] = {}

    def trim(self, present: int) -> None:
        """Remove all facts if most of them are about requests that no reservation has any more. `present`: the number
        of pending groups.
        """
        if max(len(self.keys.all), len(self._facts)) > 2 * present + SPARE_KEYS:
            self.requirements, self.keys, self._facts = RequirementsIndex(), _Keys(), {}

    def find(self, shape: Shape) -> _Facts | None:
        """Return the facts about the requests of a shape; None if `note` has stored none."""
        return self._facts.get(shape)

    def note(self, demand: Demand) -> _Facts:
        """Store the facts about a demand, and return these facts: the labels and amounts that a slot must have for the
        first instance, and the number of labels that the request requires.
        """
        shared = demand if demand.is_shared else replace(demand, declined=(), impatient=())
        facts = self._facts[demand.shape] = _Facts(
            shared, count_required(demand.shape), *self._find_requirements(shared)
        )
        return facts

    def _find_requirements(self, demand: Demand) -> tuple[Requirements, Requirements | None]:
        need = demand.needs[0]
        required = {**need.labels, **need.component.labels}
        requirements = self.requirements.find(required, need.steps)
        if not need.prefers:
            return requirements, requirements
        if any(required.get(name, value) != value for name, value in need.prefers.items()):
            return requirements, None
        return requirements, self.requirements.find({**required, **need.prefers}, need.steps)


class GroupTable:
    """The pending groups of one cycle. They are found by account, or by what a slot must have for their first
    instance.
    """

    def __init__(self, cycle: CycleState, waiters: Queue | Collection[Shape], known: KnownRequests) -> None:
        """Group pending reservations by account and request.

        If `waiters` is a queue, its reservations are grouped. If `waiters` is a collection of shapes, all pending
        reservations of the view are grouped except those with one of these shapes. Pass shapes only if the account and
        the shape alone determine how each reservation is placed.
        """
        self._cycle, self._known = cycle, known
        self._opened: dict[Key, PendingGroup] = {}
        found = _list_groups(cycle, waiters)
        self._rows = _group_each(cycle, cast("Queue", waiters)) if found is None else found
        """Key of a group (account, and shape or demand) -> the reservations with this key, in queue order."""
        known.trim(len(self._rows))
        self._keys = _Keys() if found is None else known.keys
        for key in filterfalse(self._keys.all.__contains__, self._rows):
            self._keys.add(key, self._find_facts(key))
        self.payers: dict[int, set[Payer]] = {level: set() for level in range(FREE + 1)}
        """Level -> the accounts with pending groups that can pay at this level and at no better one."""
        accounts = cycle.balances.accounts
        for payer, keys in self._keys.of_payer.items():
            if not any(key in self._rows for key in keys):
                continue  # none of the account's requests waits any more
            account = None if payer is None else accounts.get(payer)
            self.payers[FREE if account is None else level_of(account.balance)].add(payer)

    def _find_facts(self, key: Key) -> _Facts:
        if isinstance(key[1], Demand):
            return self._known.find(key[1].shape) or self._known.note(key[1])
        return self._known.find(key[1]) or self._known.note(self._cycle.demand_of(self._rows[key].rows[0]))

    def _open(self, key: Key) -> PendingGroup:
        group = self._opened.get(key)
        if group is None:
            rows, facts = self._rows[key].rows, self._find_facts(key)
            account, level = self._cycle.balances.account_of(rows[0]), self._cycle.balances.level_of(rows[0])
            demand = key[1] if isinstance(key[1], Demand) else facts.demand
            likeness = find_likeness(account, demand.shape) if account and account.max_fanout else None
            group = self._opened[key] = PendingGroup(
                len(self._opened), account, demand, level, likeness, facts.labels, facts.required, facts.preferred, rows
            )
        return group

    def list_meeting(
        self, requirements: Requirements, payers: Collection[Payer], *, preferring: bool
    ) -> Iterator[PendingGroup]:
        """Yield the pending groups of the accounts `payers` whose first instance needs a slot with exactly the labels
        and amounts `requirements`. `preferring`: whether the labels that a group prefers count as needed.
        """
        for key in self._keys.list_meeting(requirements, payers, preferring=preferring):
            if key in self._rows:
                yield self._open(key)

    def list_of(self, payers: Iterable[Payer]) -> Iterator[PendingGroup]:
        """Yield all pending groups of these accounts."""
        for payer in payers:
            for key in self._keys.of_payer.get(payer, ()):
                if key in self._rows:
                    yield self._open(key)


def _list_groups(cycle: CycleState, waiters: Queue | Collection[Shape]) -> Mapping[Key, AgedRows] | None:
    """Return the groups of the view's pending reservations: (account name, shape) -> reservations. Return None if
    `waiters` is a queue that does not consist of exactly these groups. If `waiters` is a collection of shapes, leave
    out the groups with these shapes.
    """
    if isinstance(waiters, Queue):
        groups = group_waiters(cycle)
        if groups is None or len(groups[1]) != len(waiters.ids):
            return None
    found = cast("Mapping[Key, AgedRows]", cycle.view.waiters.groups())
    if isinstance(waiters, Queue) or not waiters:
        return found
    return {key: group for key, group in found.items() if key[1] not in waiters}


def _group_each(cycle: CycleState, waiters: Queue) -> Mapping[Key, AgedRows]:
    """Return the reservations of a queue by (account that pays, demand). Used if account name and shape alone do not
    determine how reservations are placed.
    """
    account_of, found = cycle.balances.account_of, dict[Key, list[Reservation]]()
    for reservation, demand in waiters:
        payer = account_of(reservation)
        found.setdefault((payer.id if payer else None, demand), []).append(reservation)
    return {key: AgedRows(rows) for key, rows in found.items()}


@dataclass(frozen=True)
class Candidates:
    """The pending groups that one step may place: the groups of the accounts `payers` for which the function `accept`
    returns True.

    Groups of which all reservations are placed are included; a step has to leave such groups out.
    """

    table: GroupTable
    payers: Collection[Payer]
    accept: Callable[[PendingGroup], bool]

    def list_meeting(self, requirements: Requirements, *, preferring: bool) -> list[PendingGroup]:
        """Return the groups whose first instance needs a slot with exactly the labels and amounts `requirements`.
        `preferring`: whether the labels that a group prefers count as needed.
        """
        found = self.table.list_meeting(requirements, self.payers, preferring=preferring)
        return list(filter(self.accept, found))

    def __iter__(self) -> Iterator[PendingGroup]:
        return filter(self.accept, self.table.list_of(self.payers))
