"""The limits of quota accounts: leases of equal reservations, and leases on slots with a label. Source: qscheduler's
releases that enforced them.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from copy import deepcopy

from scheduler.model.accounts import Account
from scheduler.model.reservations import Shape
from scheduler.model.resources import Labels, shape_of
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.quota.pending_groups import PendingGroup
from scheduler.policy.quota.running import RunningIndex


def find_likeness(account: Account | None, shape: Shape) -> Hashable:
    """Return a key that is equal for reservations of one account with equal `labels` and `prefers`. They share a
    fan-out limit.
    """
    return (account.id if account else None, shape_of(shape.labels), shape_of(shape.prefers))


class AccountLimits:
    """Counts the leases of each account that its limits concern.

    `max_fanout` limits the paid leases of equal reservations, `per_label_task_limits` the leases on slots with a label.
    Both count the leases that run when the placing begins, at any level, and leases that are assigned in the cycle.
    Leases that a preemption ends are not counted from the next cycle on.
    """

    def __init__(self, cycle: CycleState, running: RunningIndex) -> None:
        self._alike: Counter[Hashable] = Counter()
        self._labelled: Counter[tuple[str, str, str]] = Counter()
        for account in cycle.balances.accounts.values():
            if account.max_fanout or account.per_label_task_limits:
                self._count(cycle, running, account)

    def _count(self, cycle: CycleState, running: RunningIndex, account: Account) -> None:
        for run in running.list_paid_by(account.id):
            if account.max_fanout:
                likeness = find_likeness(account, cycle.view.shapes[run.reservation.id])
                self._alike[likeness] += len(run.leases)
            for lease in run.leases if account.per_label_task_limits else ():
                if lease.slot in cycle.slot_infos:
                    self._note_labels(account, cycle.slot_infos[lease.slot].labels)

    def is_fanned_out(self, group: PendingGroup) -> bool:
        """Return whether the reservations that are equal to those of a group have reached the account's `max_fanout`.

        Then the group gets no paid lease and preempts nothing.
        """
        account = group.account
        return account is not None and 0 < account.max_fanout <= self._alike[group.likeness]

    def copy(self) -> "AccountLimits":
        """Return a copy of the present counts. Leases that are noted later in the original do not count in the copy."""
        return deepcopy(self)

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
        """Count the leases that a reservation of the group gets on these slots."""
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
