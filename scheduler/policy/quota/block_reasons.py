"""Whom its own account keeps from a lease, and why: it launches nothing. Source: qscheduler."""

from scheduler.model.accounts import FREE, Account
from scheduler.model.reservations import Reservation
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.quota.pending_groups import PendingGroup
from scheduler.policy.quota.requirements import Requirements
from scheduler.policy.quota.run import QuotaRun

Told = tuple[str, str]
"""A waiting code, and the sentence."""


def lacks_quota(cycle: CycleState, reservation: Reservation) -> bool:
    """Whether nothing is left to pay with, and its account has no work that is free. Only under the queue `quota`."""
    if cycle.settings_of(reservation).queue != "quota":
        return False
    account = cycle.balances.account_of(reservation)
    return account is not None and account.disable_free_tasks and cycle.balances.level_of(reservation) == FREE


def tell_without_quota(cycle: CycleState, reservation: Reservation) -> bool:
    """Tell one that lacks quota; whether it does."""
    lacks = lacks_quota(cycle, reservation)
    if lacks:
        cycle.wait(reservation.id, *_say_no_quota(cycle.balances.account_of(reservation)))
    return lacks


def _say_no_quota(account: Account | None) -> Told:
    name = account.id if account else ""
    return "no_quota", f"account {name} has nothing left at any level, and runs nothing for free"


class BlockReasons:
    """What accounts refuse to those who are left without a place."""

    def __init__(self, quota_run: QuotaRun) -> None:
        self._tick = quota_run
        self._idle_by_ask: dict[Requirements, list[SlotInfo]] = {}
        self._known: dict[tuple[str, Requirements], str | None] = {}
        for slot_info in (
            quota_run.idle if any(_limits_labels(group) for groups in quota_run.groups for group in groups) else ()
        ):
            for requirements in quota_run.requirements_index.list_met(slot_info, slot_info.free):
                self._idle_by_ask.setdefault(requirements, []).append(slot_info)

    def find(self, group: PendingGroup) -> Told | None:
        """Code and sentence for those of this lot without a place; None where they lack nothing but room."""
        account = group.account
        if account is None:
            return None
        if account.disable_free_tasks and group.level == FREE:
            return _say_no_quota(account)
        if account.disable_free_tasks and self._tick.limits.is_fanned_out(group):
            told = f"account {account.id} pays for {account.max_fanout} leases of its like, and runs nothing for free"
            return "account_limit", told
        slot = self._find_refused(account, group) if account.per_label_task_limits else None
        if slot is None:
            return None
        return "account_limit", f"account {account.id} has as many leases as it may on slots with a label of {slot}"

    def _find_refused(self, account: Account, group: PendingGroup) -> str | None:
        """An idle slot with its labels, where a limit of the account refuses all of them; else None."""
        key = (account.id, group.required)
        if key not in self._known:
            idle = self._idle_by_ask.get(group.required, [])
            refused = bool(idle) and all(self._tick.limits.refuses(account, [slot_info]) for slot_info in idle)
            self._known[key] = idle[0].slot.id if refused else None
        return self._known[key]


def _limits_labels(group: PendingGroup) -> bool:
    return bool(group.account and group.account.per_label_task_limits and not group.is_served)
