"""Limits of accounts: how many leases of reservations that are alike it may pay for, and how many it may have on slots
with the same label. Source: qscheduler, in the releases that enforced them.

Both count leases that run as placing begins, whatever their level, and those that are given in the tick. What a
preemption frees counts from the next tick on.
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
    """Equal for reservations of one account with equal `labels` and `prefers`, compared as values."""
    return (account.id if account else None, shape_of(shape.labels), shape_of(shape.prefers))


class AccountLimits:
    """How many leases each account has of each likeness, and on each label that it limits."""

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
        """Whether its likeness has `max_fanout` leases: it gets none that is paid, and preempts nobody."""
        account = group.account
        return account is not None and 0 < account.max_fanout <= self._alike[group.likeness]

    def refuses(self, account: Account | None, slot_infos: Sequence[SlotInfo]) -> bool:
        """Whether, with leases on all these places, the account would have more than it may on slots with one of their
        labels; a name without a limit limits nothing.
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
        """One of the lot gets leases on these places."""
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
