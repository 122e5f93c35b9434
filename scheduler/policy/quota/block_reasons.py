"""Reservations blocked by their own account (balance or limits). They never cause a launch. Source: qscheduler."""

from scheduler.model.accounts import FREE, Account
from scheduler.model.reservations import Reservation
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.quota.pending_groups import PendingGroup
from scheduler.policy.quota.requirements import Requirements
from scheduler.policy.quota.run import QuotaRun

CodeAndSentence = tuple[str, str]
"""A waiting code, and the sentence."""


def lacks_quota(cycle: CycleState, reservation: Reservation) -> bool:
    """Return whether the account of a reservation has nothing left and runs nothing free; only under `queue: quota`."""
    if cycle.settings_of(reservation).queue != "quota":
        return False
    account = cycle.balances.account_of(reservation)
    return account is not None and account.disable_free_tasks and cycle.balances.level_of(reservation) == FREE


def report_no_quota(cycle: CycleState, reservation: Reservation) -> bool:
    """Report `no_quota` for a reservation that lacks quota; return whether it does."""
    lacks = lacks_quota(cycle, reservation)
    if lacks:
        cycle.wait(reservation.id, *_describe_no_quota(cycle.balances.account_of(reservation)))
    return lacks


def _describe_no_quota(account: Account | None) -> CodeAndSentence:
    name = account.id if account else ""
    return "no_quota", f"account {name} has nothing left at any level, and runs nothing for free"


class BlockReasons:
    """The reasons for which accounts block reservations that were not placed."""

    def __init__(self, quota_run: QuotaRun) -> None:
        self._run = quota_run
        self._idle_by_requirements: dict[Requirements, list[SlotInfo]] = {}
        self._known: dict[tuple[str, Requirements], str | None] = {}
        for slot_info in (
            quota_run.idle if any(_limits_labels(group) for groups in quota_run.groups for group in groups) else ()
        ):
            for requirements in quota_run.requirements_index.list_met(slot_info, slot_info.free):
                self._idle_by_requirements.setdefault(requirements, []).append(slot_info)

    def find(self, group: PendingGroup) -> CodeAndSentence | None:
        """Return code and sentence for the rest of a group; None if the account does not block it."""
        account = group.account
        if account is None:
            return None
        if account.disable_free_tasks and group.level == FREE:
            return _describe_no_quota(account)
        if account.disable_free_tasks and self._run.limits.is_fanned_out(group):
            sentence = (
                f"account {account.id} pays for {account.max_fanout} leases of its like, and runs nothing for free"
            )
            return "account_limit", sentence
        slot = self._find_refused(account, group) if account.per_label_task_limits else None
        if slot is None:
            return None
        return "account_limit", f"account {account.id} has as many leases as it may on slots with a label of {slot}"

    def _find_refused(self, account: Account, group: PendingGroup) -> str | None:
        """Return an idle slot that meets the requirements, if a limit of the account refuses all such slots."""
        key = (account.id, group.required)
        if key not in self._known:
            idle = self._idle_by_requirements.get(group.required, [])
            refused = bool(idle) and all(self._run.limits.refuses(account, [slot_info]) for slot_info in idle)
            self._known[key] = idle[0].slot.id if refused else None
        return self._known[key]


def _limits_labels(group: PendingGroup) -> bool:
    return bool(group.account and group.account.per_label_task_limits and not group.is_served)
