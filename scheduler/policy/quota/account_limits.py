"""The limits of quota accounts: on the leases of equal reservations (`max_fanout`), and on the leases on slots with the
same label (`per_label_task_limits`). Source: the releases of qscheduler that enforced these limits.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import deepcopy

from scheduler.model.accounts import Account, find_account
from scheduler.model.resources import Labels
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.elastic.instances import ElasticGroup
from scheduler.policy.quota.group_table import PendingGroup, find_likeness
from scheduler.policy.quota.running import RunningIndex


class TrialLeases:
    """Tests whether an account's limits for labels (`per_label_task_limits`) permit leases before they are decided. The
    tested leases count together with the account's present leases, by the labels of their slots.
    """

    def __init__(self, account: Account, present: Counter[tuple[str, str, str]]) -> None:
        """Start without tested leases. `present`: (account, label name, label value) -> number of present leases, for
        all accounts.
        """
        self._account, self._present = account, present
        self._taken: Counter[tuple[str, str, str]] = Counter()

    def allows(self, slot_info: SlotInfo) -> bool:
        """Return whether the account may have one more lease on a slot, together with the leases that were counted by
        `take`.
        """
        limits = self._account.per_label_task_limits
        return all(self._present[key] + self._taken[key] < limits[key[1]] for key in self._list_keys(slot_info))

    def take(self, slot_info: SlotInfo) -> bool:
        """Test one more lease on a slot as `allows` does. If the account may have the lease, count it for later tests.
        Return the result of the test.
        """
        is_allowed = self.allows(slot_info)
        if is_allowed:
            self._taken.update(self._list_keys(slot_info))
        return is_allowed

    def _list_keys(self, slot_info: SlotInfo) -> list[tuple[str, str, str]]:
        labels, limits = slot_info.labels, self._account.per_label_task_limits
        return [(self._account.id, name, labels[name]) for name in limits if name in labels]


class AccountLimits:
    """Counts the leases of each account that has limits.

    `max_fanout` limits the paid leases of equal reservations; `per_label_task_limits` limits the leases on slots with a
    label. For both, two kinds of leases count: leases that run when the placing begins, at any level, and leases that
    this cycle assigns. A lease that a preemption ends still counts in the present cycle.
    """

    def __init__(self, cycle: CycleState, running: RunningIndex) -> None:
        self._alike: Counter[Hashable] = Counter()
        self.labelled: Counter[tuple[str, str, str]] = Counter()
        for account in cycle.balances.accounts.values():
            if account.max_fanout or account.per_label_task_limits:
                self._count(cycle, running, account)

    def _count(self, cycle: CycleState, running: RunningIndex, account: Account) -> None:
        for run in running.list_paid_by(account.id):
            if account.max_fanout:
                self._alike[find_likeness(account, cycle.view.shapes[run.reservation.id])] += len(run.leases)
            for lease in run.leases if account.per_label_task_limits else ():
                if lease.slot in cycle.slot_infos:
                    self._note_labels(account, cycle.slot_infos[lease.slot].labels)

    def is_fanned_out(self, group: PendingGroup) -> bool:
        """Return whether the leases of reservations that are equal to those of the group have reached the fan-out limit
        of the group's account (`max_fanout`). Return False if there is no account or no limit.

        If the limit is reached, the group gets no paid lease and preempts nothing.
        """
        account = group.account
        return account is not None and 0 < account.max_fanout <= self._alike[group.likeness]

    def copy(self) -> "AccountLimits":
        """Return a copy of the present counts. Later calls of `note` on the original do not change the copy."""
        return deepcopy(self)

    def refuses(self, account: Account | None, slot_infos: Sequence[SlotInfo]) -> bool:
        """Return whether leases on all these slots would exceed a limit of the quota account for a label
        (`per_label_task_limits`). False for no account.
        """
        trial = self.try_leases(account)
        return trial is not None and not all(map(trial.take, slot_infos))

    def try_leases(self, account: Account | None) -> "TrialLeases | None":
        """Return an object that tests further leases against the account's `per_label_task_limits`: how many leases the
        account may have on slots with the same value of a label. Return None if the account has no such limit.
        """
        if account is None or not account.per_label_task_limits:
            return None
        return TrialLeases(account, self.labelled)

    def find_test(self, account: Account | None, placed: Iterable[SlotInfo]) -> Callable[[SlotInfo], bool] | None:
        """Return the test of `try_leases` for one more lease beside leases on the slots `placed`; None: no limit."""
        trial = self.try_leases(account)
        if trial is None:
            return None
        for slot_info in placed:
            trial.take(slot_info)
        return trial.allows

    def note(self, group: PendingGroup, slot_infos: Iterable[SlotInfo]) -> None:
        """Count the leases that one reservation of the group gets on these slots. They count for later calls of this
        cycle.
        """
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
                self.labelled[account.id, name, labels[name]] += 1


class LimitsOfGrants:
    """The limits `per_label_task_limits` of accounts for their elastic instances. An account that has reached its limit
    for a label is granted no further slot with this label.

    Instances that this cycle has granted count too. An instance that this cycle has reclaimed still counts until the
    next one.
    """

    def __init__(self, cycle: CycleState, limits: AccountLimits, accounts: Mapping[str, Account]) -> None:
        """Make limits that count on from the leases in `limits`. `accounts`: id -> account, for the accounts that have
        `per_label_task_limits`.
        """
        self._cycle, self._limits, self._accounts = cycle, limits, accounts
        self._groups: dict[str, dict[ElasticGroup, None]] = {name: {} for name in accounts}
        """Account id -> the groups of elastic instances for which `update` was called; they may have been granted slots
        in this cycle.
        """
        self._slots: dict[str, dict[str, list[str]]] = {}
        """Label name -> label value -> the ids of the slots with this label."""

    def update(self, group: ElasticGroup) -> None:
        """Set `group.refused` to the ids of the slots on which the limits of its account refuse the group one more
        instance. Change nothing if the account has no limits for labels.
        """
        holder = group.holder
        account = find_account(self._accounts, holder.request.account, holder.sequence)
        if account is None or self._cycle.settings_of(holder).queue != "quota":
            return
        groups = self._groups[account.id]
        groups[group] = None
        refused = set[str]()
        for name, limit in account.per_label_task_limits.items():
            granted = Counter(
                each.slot_info.labels.get(name)
                for other in groups
                for each in other.elastic_instances
                if each.is_granted and each.slot_info is not None
            )
            for value, slots in self._list_slots(name).items():
                if self._limits.labelled[account.id, name, value] + granted[value] >= limit:
                    refused.update(slots)
        group.refused = refused

    def _list_slots(self, name: str) -> dict[str, list[str]]:
        if name not in self._slots:
            slots = self._slots[name] = dict[str, list[str]]()
            for slot, slot_info in self._cycle.slot_infos.items():
                if name in slot_info.labels:
                    slots.setdefault(slot_info.labels[name], []).append(slot)
        return self._slots[name]


def make_limits_of_grants(cycle: CycleState, limits: AccountLimits) -> LimitsOfGrants | None:
    """Return the limits of accounts for elastic instances, starting with the leases that `limits` has counted. Return
    None if no account has limits for labels.
    """
    accounts = cycle.balances.accounts.items()
    limited = {name: account for name, account in accounts if account.per_label_task_limits}
    return LimitsOfGrants(cycle, limits, limited) if limited else None
