"""Running work under quota: cost, level and slots of each reservation's leases, and the limits of accounts.

Leases that are assigned in this cycle count at once. A reservation with several leases is one piece of work: it has one
level, and its cost is the cost of all its leases. Source: qscheduler; the limits of accounts come from its releases
that enforced them.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from scheduler.model.accounts import NOTHING, Account, Levels, add
from scheduler.model.labels import Labels, shape_of
from scheduler.model.reservations import Lease, Reservation, Shape
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.quota.accounting import settle
from scheduler.policy.quota.pending_groups import PendingGroup

RunState = Literal["held", "leaving", "claimed"]


@dataclass(slots=True, eq=False)
class RunningWork:
    """The running work of one reservation with leases.

    `leaving`: it was preempted or interrupted, and its grace runs.
    """

    reservation: Reservation
    account: Account | None
    level: int
    leases: tuple[Lease, ...]
    order: int
    """The position of the reservation's first slot in the order of all slots."""
    state: RunState
    now: float
    weight: float
    """The cost of the running work per second."""
    _cost: Levels | None = None

    @property
    def cost(self) -> Levels:
        """What the running work has used up to now, with what it inherited from its victims."""
        if self._cost is None:
            self._cost = NOTHING
            for lease in self.leases:
                self._cost = add(self._cost, settle(lease, self.now).cost)
        return self._cost

    @property
    def rank(self) -> tuple[Levels, int, int]:
        """The rank of running work among possible victims: cheapest first, then by slot."""
        return (self.cost, self.order, self.reservation.sequence)


class RunningIndex:
    """All running work under `queue: quota`, with the changes of this cycle so far."""

    def __init__(self, cycle: CycleState) -> None:
        self._cycle = cycle
        self._last = len(cycle.slot_infos)
        self.runs: dict[str, RunningWork] = {}
        self.of_account: dict[str, list[RunningWork]] = {}
        """By id of an account that exists: the running work that the account pays for."""
        for reservation in _list_holders(cycle):
            self.add(reservation, reservation.leases)

    def add(self, reservation: Reservation, leases: tuple[Lease, ...]) -> RunningWork:
        """Add a reservation with the given leases to the running work, or replace its leases."""
        if reservation.id in self.runs:
            self.end(reservation.id)
        cycle = self._cycle
        account = cycle.balances.account_of(reservation)
        is_leaving = reservation.phase == "revoking" or reservation.id in cycle.returning
        state: RunState = "leaving" if is_leaving else "held"
        if leases[0].state == "claimed":
            state = "claimed"
        run = RunningWork(
            reservation=reservation,
            account=account,
            level=leases[0].level,
            leases=leases,
            order=self._order_of(leases[0]) if len(leases) == 1 else min(map(self._order_of, leases)),
            state=state,
            now=cycle.now,
            weight=leases[0].weight if len(leases) == 1 else sum(lease.weight for lease in leases),
        )
        self.runs[reservation.id] = run
        if account is not None:
            self.of_account.setdefault(account.id, []).append(run)
        return run

    def end(self, name: str) -> None:
        """Remove a reservation from the index of running work, because its leases ended."""
        run = self.runs.pop(name)
        if run.account is not None:
            self.of_account[run.account.id].remove(run)

    def list_metered(self, account: str) -> Iterator[RunningWork]:
        """Return the work that counts for the levels of an account; preempted work uses nothing in its grace."""
        return (
            run
            for run in self.of_account.get(account, ())
            if run.state != "leaving" or any(each.charged_at is not None for each in run.leases)
        )

    def has_worse(self, account: str, level: int) -> bool:
        """Return whether the account has a lease at a level worse than `level`."""
        return any(run.level > level for run in self.list_metered(account))

    def _order_of(self, lease: Lease) -> int:
        slot_info = self._cycle.slot_infos.get(lease.slot)
        return self._last if slot_info is None else slot_info.order


def _list_holders(cycle: CycleState) -> Iterator[Reservation]:
    """Return the reservations with leases or claims whose queue is `quota`, in order of submission."""
    found = [*cycle.list_in_phase("leased"), *cycle.list_in_phase("revoking"), *cycle.list_claimants()]
    found.sort(key=lambda each: each.sequence)
    return (each for each in found if each.leases and cycle.settings_of(each).queue == "quota")


def find_likeness(account: Account | None, shape: Shape) -> Hashable:
    """Return a key that is equal for reservations of one account with equal `labels` and `prefers`."""
    return (account.id if account else None, shape_of(shape.labels), shape_of(shape.prefers))


class AccountLimits:
    """The number of leases of each account, by key of equal reservations and by label that the account limits.

    `max_fanout` limits the paid leases of equal reservations, `per_label_task_limits` the leases on slots with a label.
    Both count the leases that run as placing begins, at any level, and leases that are assigned in the cycle. Leases
    that a preemption ends are not counted from the next cycle on.
    """

    def __init__(self, cycle: CycleState, running: RunningIndex) -> None:
        self._alike: Counter[Hashable] = Counter()
        self._labelled: Counter[tuple[str, str, str]] = Counter()
        for run in running.runs.values():
            account = run.account
            if account is None:
                continue
            if account.max_fanout:
                likeness = find_likeness(account, cycle.view.shapes[run.reservation.id])
                self._alike[likeness] += len(run.leases)
            if account.per_label_task_limits:
                for lease in run.leases:
                    if lease.slot in cycle.slot_infos:
                        self._note_labels(account, cycle.slot_infos[lease.slot].labels)

    def is_fanned_out(self, group: PendingGroup) -> bool:
        """Return whether the reservations that are equal to those of a group have `max_fanout` leases.

        Then the group gets no paid lease and preempts nothing.
        """
        account = group.account
        return account is not None and 0 < account.max_fanout <= self._alike[group.likeness]

    def refuses(self, account: Account | None, slot_infos: Sequence[SlotInfo]) -> bool:
        """Return whether leases on all these slots would exceed the limit that the quota account has for a label
        (`per_label_task_limits`).
        """
        if account is None or not account.per_label_task_limits:
            return False
        limits, taken = account.per_label_task_limits, Counter[tuple[str, str, str]]()
        for slot_info in slot_infos:
            for name in limits.keys() & slot_info.labels.keys():
                key = (account.id, name, slot_info.labels[name])
                taken[key] += 1
                if self._labelled[key] + taken[key] > limits[name]:
                    return True
        return False

    def note(self, group: PendingGroup, slot_infos: Iterable[SlotInfo]) -> None:
        """Count the leases that a reservation gets on these slots towards the limits of its quota account."""
        account = group.account
        if account is None:
            return
        for slot_info in slot_infos:
            if account.max_fanout:
                self._alike[group.likeness] += 1
            if account.per_label_task_limits:
                self._note_labels(account, slot_info.labels)

    def _note_labels(self, account: Account, labels: Labels) -> None:
        for name in account.per_label_task_limits:
            if name in labels:
                self._labelled[account.id, name, labels[name]] += 1
