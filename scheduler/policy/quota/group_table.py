"""The pending groups of one cycle, which are opened when a slot can serve them, and what is kept of their requests.

Most groups wait for slots that are full. A cycle opens a group only if an idle slot meets its requirements, if its
account may preempt work there, or if its account has a rule of its own.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from scheduler.model.accounts import FREE, level_of
from scheduler.model.pending_queue import AgedRows
from scheduler.model.reservations import Reservation, Shape
from scheduler.policy.capacity.requests import Demand
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.queueing.order import count_required
from scheduler.policy.quota.account_limits import find_likeness
from scheduler.policy.quota.pending_groups import PendingGroup, Requirements, RequirementsIndex

Payer = str | None
"""The name of the account that a group names, or of the account that pays for it; None: there is none."""
Key = tuple[Payer, Shape | Demand]
"""What the reservations of a group have in common."""
SPARE_KEYS = 1_000
"""The groups and shapes that are kept although no reservation waits with them: as many as are present, and these."""


@dataclass(slots=True)
class _Facts:
    demand: Demand
    labels: int
    required: Requirements
    preferred: Requirements | None


class _Keys:
    """The keys of groups by their requirements and by their account."""

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
        """Yield the keys of groups of these accounts whose required (or also preferred) labels are `requirements`."""
        found = (self._preferring if preferring else self._requiring).get(requirements)
        for payer, keys in found.items() if found else ():
            if payer in payers:
                yield from keys


def _make_lists() -> defaultdict[Payer, list[Key]]:
    return defaultdict(list)


class KnownRequests:
    """What is kept of pending requests from one cycle to the next, under the same rules."""

    def __init__(self) -> None:
        self.requirements = RequirementsIndex()
        self.keys = _Keys()
        self._facts: dict[Shape, _Facts] = {}

    def trim(self, present: int) -> None:
        """Forget everything if most of it belongs to requests that wait no longer. `present`: how many groups wait."""
        if max(len(self.keys.all), len(self._facts)) > 2 * present + SPARE_KEYS:
            self.requirements, self.keys, self._facts = RequirementsIndex(), _Keys(), {}

    def find(self, shape: Shape) -> _Facts | None:
        """Return what is known of a shape."""
        return self._facts.get(shape)

    def note(self, demand: Demand) -> _Facts:
        """Return the labels and amounts that a slot must have for the first instance of a demand, and the number of
        labels that the demand requires.
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
    """The pending groups of one cycle."""

    def __init__(self, cycle: CycleState, waiters: Queue | Collection[Shape], known: KnownRequests) -> None:
        """Group the given queue. A collection: all pending reservations of the view except those of its shapes; each is
        placed by account and shape alone.
        """
        self._cycle, self._known = cycle, known
        self._opened: dict[Key, PendingGroup] = {}
        found = _list_groups(cycle, waiters)
        self._rows = _group_each(cycle, cast("Queue", waiters)) if found is None else found
        """By key: the reservations of the group in queue order."""
        known.trim(len(self._rows))
        self._keys = _Keys() if found is None else known.keys
        for key in self._rows.keys() - self._keys.all:
            self._keys.add(key, self._find_facts(key))
        self.payers: dict[int, set[Payer]] = {level: set() for level in range(FREE + 1)}
        """By level: the accounts with pending groups that can pay for it."""
        accounts = cycle.balances.accounts
        for payer in {payer for payer, _ in self._rows}:
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
        """Yield the groups of these accounts with given requirements. `preferring`: with preferred labels included."""
        for key in self._keys.list_meeting(requirements, payers, preferring=preferring):
            if key in self._rows:
                yield self._open(key)

    def list_of(self, payers: Iterable[Payer]) -> Iterator[PendingGroup]:
        """Yield all groups of these accounts."""
        for payer in payers:
            for key in self._keys.of_payer.get(payer, ()):
                if key in self._rows:
                    yield self._open(key)


def _list_groups(cycle: CycleState, waiters: Queue | Collection[Shape]) -> Mapping[Key, AgedRows] | None:
    """Return the groups of the view by name of the account and shape; None if they are not the groups of the queue."""
    if isinstance(waiters, Queue):
        groups = cycle.group_waiters()
        if groups is None or len(groups[1]) != len(waiters.ids):
            return None
    found = cast("Mapping[Key, AgedRows]", cycle.view.waiters.groups())
    if isinstance(waiters, Queue) or not waiters:
        return found
    return {key: group for key, group in found.items() if key[1] not in waiters}


def _group_each(cycle: CycleState, waiters: Queue) -> Mapping[Key, AgedRows]:
    """Return the groups of a queue in which account and shape alone do not determine how reservations are placed."""
    account_of, found = cycle.balances.account_of, dict[Key, list[Reservation]]()
    for reservation, demand in waiters:
        payer = account_of(reservation)
        found.setdefault((payer.id if payer else None, demand), []).append(reservation)
    return {key: AgedRows(rows) for key, rows in found.items()}


@dataclass(frozen=True)
class Candidates:
    """The pending groups that one step may place: the accounts that they belong to, and a condition for each group.

    Whether a group is served already is tested when the group comes up.
    """

    table: GroupTable
    payers: Collection[Payer]
    accept: Callable[[PendingGroup], bool]

    def list_meeting(self, requirements: Requirements, *, preferring: bool) -> list[PendingGroup]:
        """Return the groups with given requirements. `preferring`: with preferred labels included."""
        found = self.table.list_meeting(requirements, self.payers, preferring=preferring)
        return list(filter(self.accept, found))

    def __iter__(self) -> Iterator[PendingGroup]:
        return filter(self.accept, self.table.list_of(self.payers))
