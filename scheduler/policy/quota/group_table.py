"""The pending groups of one cycle (reservations of one account with equal requests), and facts about their requests
that later cycles use again.

Most groups wait for slots that are full. So a cycle examines a group in three cases only: an idle slot meets its
requirements, its account may preempt work, or its account has a limit of its own.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, filterfalse
from operator import attrgetter
from typing import Final, Generic, TypeVar, cast

from scheduler.model.accounts import FREE, Account, level_of
from scheduler.model.pending_queue import AgedRows
from scheduler.model.reservations import Reservation, Shape
from scheduler.model.resources import Labels, Resources, shape_of
from scheduler.policy.capacity.fits import find_obstacle
from scheduler.policy.capacity.requests import Amounts, Demand
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.queueing.order import count_required, group_waiters

# Pending groups: the pending reservations of one account with equal requests. An index finds the first group for a
# slot.
#
# One answer holds for all reservations of a group and for all slots that are alike, so the cost does not grow with
# slots × reservations.


_Item = tuple[str, str]


@dataclass(slots=True, eq=False)
class Requirements:
    """What a slot must have for an instance: labels, and free amounts by pool. (`require`, what an instance type must
    have to be an offering, is something else.)

    Compared by identity: equal requirements share one object.
    """

    number: int
    labels: Labels
    steps: Mapping[str, Amounts]

    def is_met(self, pool: str, labels: Labels, free: Resources | None) -> bool:
        """Return whether a slot of the pool `pool` with these labels and free amounts meets the requirements. `free`
        None: the slot counts leases only, and has no amounts. The number of leases on the slot is not tested.
        """
        step = self.steps.get(pool)
        return step is not None and self.labels.items() <= labels.items() and find_obstacle(step.amounts, free) is None


MOST_KINDS: Final = 100_000
"""The greatest number of kinds of slots for which `RequirementsIndex` remembers which requirements they meet."""


class RequirementsIndex:
    """All `Requirements` objects (what a slot must have) under the same rules, one for each combination of labels and
    amounts. `list_met` finds the ones that a slot meets.
    """

    def __init__(self) -> None:
        self._known: dict[object, Requirements] = {}
        self._by_label: dict[_Item | None, list[Requirements]] = {None: []}
        """Label -> the requirements that are listed under this label. None -> the requirements without labels.

        Each `Requirements` object is listed once, under one of its labels. It is the label that the fewest of the
        objects added earlier had.
        """
        self._uses: Counter[_Item] = Counter()
        self._met: dict[object, tuple[Requirements, ...]] = {}

    def find(self, labels: Labels, steps: Mapping[str, Amounts]) -> Requirements:
        """Return the one `Requirements` object for these labels and amounts, which equal requests share."""
        key = (shape_of(labels), tuple((pool, tuple(step.amounts.items())) for pool, step in steps.items()))
        requirements = self._known.get(key)
        if requirements is None:
            requirements = self._known[key] = Requirements(len(self._known), labels, steps)
            rarest = min(labels.items(), key=lambda item: (self._uses[item], item), default=None)
            self._by_label.setdefault(rarest, []).append(requirements)
            self._uses.update(labels.items())
            self._met.clear()
        return requirements

    def list_met(self, slot_info: SlotInfo, free: Resources | None) -> tuple[Requirements, ...]:
        """Return all requirements that a slot meets if its free amounts are `free`, in a fixed order."""
        key = (slot_info.slot.pool, tuple(slot_info.labels.items()), None if free is None else tuple(free.items()))
        found = self._met.get(key)
        if found is None:
            if len(self._met) > MOST_KINDS:
                self._met.clear()
            filed = chain.from_iterable(self._by_label.get(item, ()) for item in (None, *slot_info.labels.items()))
            met = (each for each in filed if each.is_met(slot_info.slot.pool, slot_info.labels, free))
            found = self._met[key] = tuple(sorted(met, key=attrgetter("number")))
        return found


Rank = tuple[int, float, int]
"""The sort key of pending groups; the group with the smallest key is served first. It is (minus the number of required
labels, time of creation, sequence number), the last two of the group's first unplaced reservation.
"""
Found = TypeVar("Found")


@dataclass(slots=True, eq=False)
class PendingGroup:
    """Pending reservations of one account that are alike in all fields that decide when and where they are placed."""

    number: int
    account: Account | None
    demand: Demand
    level: int
    """The best level that the account can pay. The group may be placed at the free level too."""
    likeness: object
    """A key that is equal for groups whose leases count together for one fan-out limit (`max_fanout`); None: no such
    limit.
    """
    labels: int
    """The number of labels that each reservation of the group requires."""
    required: Requirements
    """What a slot must have for the first instance of each reservation."""
    preferred: Requirements | None
    """What a slot must have for the first instance, with all preferred labels added. None: no slot can have both the
    preferred and the required labels.
    """
    reservations: Sequence[Reservation]
    """The reservations of the group in queue order."""
    served: int = 0
    """The number of reservations of the group that are placed: the first ones in `reservations`."""

    @property
    def is_served(self) -> bool:
        """Whether all reservations of the group are placed."""
        return self.served >= len(self.reservations)

    @property
    def first(self) -> Reservation:
        """The first reservation of the group that is not placed yet."""
        return self.reservations[self.served]

    @property
    def rank(self) -> Rank:
        """The sort key of the group, see `Rank`. It changes when a reservation of the group is placed."""
        first = self.reservations[self.served]
        return (-self.labels, first.created_at, first.sequence)


def find_likeness(account: Account | None, shape: Shape) -> Hashable:
    """Return a key that is equal for reservations of one account with equal `labels` and `prefers`. The leases of such
    reservations count together for the account's fan-out limit (`max_fanout`).
    """
    return (account.id if account else None, shape_of(shape.labels), shape_of(shape.prefers))


class PendingIndex(Generic[Found]):
    """Finds the first pending group (reservations of one account with equal requests) that a slot can serve. Slots that
    meet the same `Requirements` (labels and amounts that a slot must have) share one heap of groups.

    `list_groups` returns the groups whose requests have the given requirements. It is called once for each
    `Requirements` object, at the first call of `find` for a slot that meets it.
    """

    def __init__(
        self,
        list_groups: Callable[[Requirements], Sequence[PendingGroup]],
        is_out: Callable[[PendingGroup], bool],
    ) -> None:
        self._list_groups, self._groups = list_groups, dict[Requirements, Sequence[PendingGroup]]()
        self._heaps: dict[tuple[Requirements, ...], list[tuple[Rank, int, PendingGroup]]] = {}
        """The requirements that a slot meets -> a heap of the groups that could be placed on such a slot."""
        self._is_out = is_out
        """A function that returns whether this step must not place a group any more. Such a group is removed from its
        heap.
        """

    def _has_groups(self, requirements: Requirements) -> bool:
        if requirements not in self._groups:
            self._groups[requirements] = self._list_groups(requirements)
        return bool(self._groups[requirements])

    def find(
        self, met: tuple[Requirements, ...], accept: Callable[[PendingGroup], Found | None]
    ) -> tuple[PendingGroup, Found] | None:
        """Return the first group in order that a slot can serve and for which `accept` returns a result, together with
        this result. Return None if there is no such group. `met`: the requirements that the slot meets.
        """
        heap = self._heaps.get(met)
        if heap is None:
            own = tuple(filter(self._has_groups, met))
            if own not in self._heaps:
                groups = chain.from_iterable(self._groups[requirements] for requirements in own)
                self._heaps[own] = [(group.rank, group.number, group) for group in groups if not group.is_served]
                heapify(self._heaps[own])
            heap = self._heaps[met] = self._heaps[own]
        aside, answer = [], None
        while heap and answer is None:
            rank, number, group = heap[0]
            if group.served >= len(group.reservations) or self._is_out(group):
                heappop(heap)
            elif rank[-1] != group.reservations[group.served].sequence:  # another reservation is the first one now
                heapreplace(heap, (group.rank, number, group))
            elif (found := accept(group)) is not None:
                answer = (group, found)
            else:
                aside.append(heappop(heap))
        for entry in aside:
            heappush(heap, entry)
        return answer


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
        self._requiring: defaultdict[Requirements, defaultdict[Payer, list[Key]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._preferring: defaultdict[Requirements, defaultdict[Payer, list[Key]]] = defaultdict(
            lambda: defaultdict(list)
        )

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


class KnownRequests:
    """Facts about the requests of pending reservations. They are valid while the rules are the same."""

    def __init__(self) -> None:
        self.requirements = RequirementsIndex()
        self.keys = _Keys()
        self.facts: dict[Shape, _Facts] = {}

    def trim(self, present: int) -> None:
        """Remove all facts if most of them are about requests that no reservation has any more. `present`: the number
        of pending groups.
        """
        if max(len(self.keys.all), len(self.facts)) > 2 * present + SPARE_KEYS:
            self.requirements, self.keys, self.facts = RequirementsIndex(), _Keys(), {}

    def note(self, demand: Demand) -> _Facts:
        """Store the facts about a demand, and return these facts: the labels and amounts that a slot must have for the
        first instance, and the number of labels that the request requires.
        """
        shared = demand if demand.is_shared else replace(demand, declined=(), impatient=())
        facts = self.facts[demand.shape] = _Facts(
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
            return self._known.facts.get(key[1].shape) or self._known.note(key[1])
        return self._known.facts.get(key[1]) or self._known.note(self._cycle.demand_of(self._rows[key].rows[0]))

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
        return list(filter(self.accept, self.table.list_meeting(requirements, self.payers, preferring=preferring)))

    def __iter__(self) -> Iterator[PendingGroup]:
        return filter(self.accept, self.table.list_of(self.payers))
