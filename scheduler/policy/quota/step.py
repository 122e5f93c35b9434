"""Placing under `queue: quota`: accounts that have saved come first, and no slot stays idle while a reservation fits.

For each paid level: idle slots take reservations that prefer them, then all others; elastic instances are reclaimed;
running work moves to the level that its account can pay; better work preempts worse. At last the free level takes what
is left. A reservation that cannot be placed blocks no other one, and an idle slot is never kept for a better one.
Source: qscheduler.
"""

from collections.abc import Iterable
from itertools import chain, repeat

from scheduler.model.accounts import FREE, PAID
from scheduler.model.reservations import Lease, Reservation
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState, name_placements
from scheduler.policy.queueing.claims import assign_claims
from scheduler.policy.queueing.order import sort_queue
from scheduler.policy.quota.block_reasons import BlockReasons, report_no_quota
from scheduler.policy.quota.match_idle import match_idle
from scheduler.policy.quota.pending_groups import PendingGroup
from scheduler.policy.quota.preempt import preempt
from scheduler.policy.quota.reclaim import reclaim
from scheduler.policy.quota.reprioritize import relevel
from scheduler.policy.quota.run import QuotaRun
from scheduler.policy.quota.running import RunningIndex


def place_by_quota(cycle: CycleState, waiters: Queue) -> Queue:
    """Place these reservations, whose queue is `quota`; return those that may cause a launch instead, in order.

    A reservation that its account blocks waits with the reason and causes no launch.
    """
    if not cycle.rules.has_quota:
        return waiters
    claimants, others = _part_claimants(cycle, waiters)
    quota_run = QuotaRun(cycle, RunningIndex(cycle), others)
    _assign_claims(quota_run, claimants)
    for level in PAID:
        match_idle(quota_run, list(quota_run.list_open(level)), level, preferring=True)
        match_idle(quota_run, list(quota_run.list_open(level)), level, preferring=False)
        reclaim(quota_run, list(quota_run.list_open(level)), level)
        relevel(cycle, quota_run.running, level)
        preempt(quota_run, level)
    free = [group for group in chain.from_iterable(quota_run.groups) if _runs_free(quota_run, group)]
    match_idle(quota_run, free, FREE, preferring=True)
    match_idle(quota_run, free, FREE, preferring=False)
    reclaim(quota_run, free, FREE)
    return _list_unplaced(quota_run, others)


def _assign_claims(quota_run: QuotaRun, claimants: Iterable[Reservation]) -> None:
    """Assign claims, the earliest first; a lease has the level for which it was claimed."""

    def hold(reservation: Reservation, leases: tuple[Lease, ...]) -> None:
        quota_run.hold(reservation, leases)
        quota_run.cycle.assign(reservation, name_placements(leases), leases[0].level)

    ordered = sorted(claimants, key=lambda each: (each.leases[0].assigned_at, each.sequence))
    quota_run.served.update(each.id for each in ordered)
    assign_claims(quota_run.cycle, ordered, hold, "the reservations that it preempted", is_exclusive=True)


def split_by_queue(cycle: CycleState, waiters: Queue) -> tuple[Queue, Queue]:
    """Split reservations into those whose queue is `quota` and all others. No other code makes this distinction."""
    if not cycle.rules.has_quota:
        return Queue(), waiters
    if not cycle.rules.scheduler.system:
        return waiters, Queue()
    is_by_quota = [demand.settings.queue == "quota" for demand in waiters.demands]
    return waiters.filter(is_by_quota), waiters.filter([not each for each in is_by_quota])


def _part_claimants(cycle: CycleState, waiters: Queue) -> tuple[list[Reservation], Queue]:
    """Split reservations into those with a claim and the others."""
    if not cycle.list_claimants():
        return [], waiters
    claimants = [each for each in waiters.reservations if each.leases]
    return claimants, waiters.filter([not each.leases for each in waiters.reservations])


def _runs_free(quota_run: QuotaRun, group: PendingGroup) -> bool:
    """Return whether a group may run free: its account has nothing left, or pays for no more of its equals."""
    if group.is_served or (group.account is not None and group.account.disable_free_tasks):
        return False
    return group.level == FREE or quota_run.limits.is_fanned_out(group)


def _list_unplaced(quota_run: QuotaRun, waiters: Queue) -> Queue:
    """Return the reservations that may cause a launch: not placed and not blocked, or preempted in this cycle."""
    cycle, reasons, blocked = quota_run.cycle, BlockReasons(quota_run), set[str]()
    for group in chain.from_iterable(quota_run.groups):
        reason = None if group.is_served else reasons.find(group)
        if reason is not None:
            names = [each.id for each in group.rest]
            cycle.wait_all(names, repeat(reason))
            blocked.update(names)
    done = quota_run.served | blocked
    unplaced = waiters.filter([name not in done for name in waiters.ids])
    preempted = [each for each in cycle.preempted if not report_no_quota(cycle, each)]
    return sort_queue(cycle, unplaced.reservations + preempted) if preempted else unplaced
