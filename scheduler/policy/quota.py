"""Step 5, place, under the queue `quota`: who has saved goes first, and nothing idles while somebody waits.

For each paid level in turn: idle slots take those who prefer them, then anybody; elastic instances give way; running
work moves to the level that its account can pay; better work preempts worse. Last the free level takes what is left.
Nobody waits for anybody: one that cannot be placed holds nobody up, and an idle slot is never kept for a better
reservation. Source: qscheduler.
"""

from itertools import chain, repeat

from scheduler.model.accounts import FREE, PAID
from scheduler.model.reservations import Reservation
from scheduler.policy.claims import assign_claims
from scheduler.policy.draft import Draft, Queue
from scheduler.policy.lots import Lot
from scheduler.policy.offer import offer
from scheduler.policy.order import sort_queue
from scheduler.policy.preempt import preempt
from scheduler.policy.refusals import Refusals, tell_without_quota
from scheduler.policy.relevel import relevel
from scheduler.policy.rounds import Round
from scheduler.policy.running import Running
from scheduler.policy.yielding import take_back


def place_by_quota(draft: Draft, waiters: Queue) -> Queue:
    """Place these reservations, of queues that are `quota`; gives back those who may have a launch instead, in order.

    Whom its account keeps from a lease is told so and launches nothing.
    """
    if not draft.rules.has_quota:
        return waiters
    claimants, others = _part_claimants(draft, waiters)
    tick = Round(draft, Running(draft), others)
    assign_claims(tick, claimants)
    for level in PAID:
        offer(tick, list(tick.list_open(level)), level, preferring=True)
        offer(tick, list(tick.list_open(level)), level, preferring=False)
        take_back(tick, list(tick.list_open(level)), level)
        relevel(draft, tick.running, level)
        preempt(tick, level)
    free = [lot for lot in chain.from_iterable(tick.lots) if _runs_free(tick, lot)]
    offer(tick, free, FREE, preferring=True)
    offer(tick, free, FREE, preferring=False)
    take_back(tick, free, FREE)
    return _list_unplaced(tick, others)


def split_by_queue(draft: Draft, waiters: Queue) -> tuple[Queue, Queue]:
    """Those whose settings say that their queue is `quota`, and all others. The only place that tells them apart."""
    if not draft.rules.has_quota:
        return Queue(), waiters
    if not draft.rules.scheduler.system:
        return waiters, Queue()
    is_by_quota = [demand.settings.queue == "quota" for demand in waiters.demands]
    return waiters.filter(is_by_quota), waiters.filter([not each for each in is_by_quota])


def _part_claimants(draft: Draft, waiters: Queue) -> tuple[list[Reservation], Queue]:
    """Those who have a place that is not free yet, and the others."""
    if not draft.list_claimants():
        return [], waiters
    claimants = [each for each in waiters.reservations if each.leases]
    return claimants, waiters.filter([not each.leases for each in waiters.reservations])


def _runs_free(tick: Round, lot: Lot) -> bool:
    """Whether the free level is for it: nothing is left to pay with, or its account pays for no more of its like."""
    if lot.is_served or (lot.account is not None and lot.account.disable_free_tasks):
        return False
    return lot.level == FREE or tick.limits.is_fanned_out(lot)


def _list_unplaced(tick: Round, waiters: Queue) -> Queue:
    """Those who may have a launch: the ones without a place whom no account keeps from one, and those preempted now."""
    draft, refusals, told = tick.draft, Refusals(tick), set[str]()
    for lot in chain.from_iterable(tick.lots):
        reason = None if lot.is_served else refusals.find(lot)
        if reason is not None:
            names = [each.id for each in lot.rest]
            draft.wait_all(names, repeat(reason))
            told.update(names)
    done = tick.served | told
    unplaced = waiters.filter([name not in done for name in waiters.ids])
    preempted = [each for each in draft.preempted if not tell_without_quota(draft, each)]
    return sort_queue(draft, unplaced.reservations + preempted) if preempted else unplaced
