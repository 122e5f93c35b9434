"""Limits of accounts: the paid leases of equal reservations (`max_fanout`), and the leases on slots with the same label
(`per_label_task_limits`). Source: qscheduler, in the releases that enforced them.

Both count the leases that run as placing begins, at any level, and those that are assigned in the cycle. Leases that a
preemption ends are not counted from the next cycle on.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from scheduler.model.accounts import Account
from scheduler.model.labels import Labels, shape_of
from scheduler.model.reservations import Shape
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.quota.pending_groups import PendingGroup
from scheduler.policy.quota.running import RunningIndex


def find_likeness(account: Account | None, shape: Shape) -> Hashable:
    """Return a key that is equal for reservations of one account with equal `labels` and `prefers`."""
    return (account.id if account else None, shape_of(shape.labels), shape_of(shape.prefers))


class AccountLimits:
    """The number of leases of each account: by key of equal reservations, and by label that the account limits."""

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
        """Return whether its equals have `max_fanout` leases: it gets no paid lease and preempts nothing."""
        account = group.account
        return account is not None and 0 < account.max_fanout <= self._alike[group.likeness]

    def refuses(self, account: Account | None, slot_infos: Sequence[SlotInfo]) -> bool:
        """Return whether leases on all these slots would exceed a limit of the account by label."""
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
        """Count the leases that a reservation of a group gets on these slots."""
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
