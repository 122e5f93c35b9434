"""The list of all kinds of change that may end a reservation's wait, and the functions for the kinds that change
reservations or the queue.

Each kind is a function that finds the smallest change of this kind. It lists candidates (possible changes) from the
rows and the rules, and a trial plan with a candidate decides whether the reservation is served. A candidate that does
not help costs one plan and causes no wrong answer. The functions for slots, pools, accounts and budgets are in modules
of their own.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from scheduler.explain.changes.accounts import (
    grant_balance,
    grant_what_is_lacking,
    list_account_waits,
    list_freed_work,
    raise_limit,
)
from scheduler.explain.changes.budgets import raise_budgets
from scheduler.explain.changes.pools import add_slots, list_leases_more, list_offerings_more, raise_price_factor
from scheduler.explain.changes.slots import list_uncordoned
from scheduler.explain.conditions import describe_subject
from scheduler.explain.search import (
    MOST_CANDIDATES,
    Candidates,
    Kind,
    Search,
    Suggestion,
    combine_two,
    list_pools,
    list_slots,
)
from scheduler.model.reservations import Reservation, is_on_hold


def list_freed(search: Search) -> Iterator[Suggestion]:
    """Yield the change that takes the reservation of this search off hold: it is resumed, and a priority of 0 becomes
    1. Yield nothing if the reservation is not on hold.
    """
    reservation = search.reservation
    if is_on_hold(reservation):
        words = "it would be placed if it were resumed" if reservation.suspended else "a priority above 0 would do"
        freed = msgspec.structs.replace(reservation, suspended=False, priority=reservation.priority or 1)
        yield Suggestion(kind="hold", text=words, rows=(freed,))


def list_waits(search: Search) -> Iterator[Suggestion]:
    """Yield suggestions to wait until a launch back-off is over in a pool that may serve the reservation. The back-off
    that ends first comes first.
    """
    pools = {name for name, _ in list_pools(search)}
    holds = [each for each in search.view.holds.values() if each.pool in pools | {"*"} and each.until > search.now]
    for hold in sorted(holds, key=lambda each: (each.until, each.id)):
        if hold.kind != "strangers":
            yield Suggestion(
                kind="wait",
                text=f"the launch back-off of {describe_subject(hold)} ({hold.kind})"
                f" ends in {hold.until - search.now:.0f} s",
                wait_seconds=hold.until - search.now,
            )


def list_overtaking(search: Search) -> Iterator[Suggestion]:
    """Yield changes of the rules that let the reservation be placed before an earlier reservation that does not fit.
    There are two: backfill is switched on; the starvation guard is switched off.
    """
    settings = search.rules.settings_of(search.reservation.request.pool, search.reservation.request.system)
    changes: list[tuple[str, dict[str, Any]]] = []
    if not settings.backfill:
        changes.append(("with backfill it would not wait for an earlier reservation in the queue", {"backfill": True}))
    if settings.starvation_guard:
        changes.append(
            ("the starvation_guard keeps slots for an earlier reservation in the queue", {"starvation_guard": 0})
        )
    queue = search.rules.queue_of(search.reservation.request.pool, search.reservation.request.system)
    for text, keys in changes:
        table = {"system": {queue: keys}} if queue else keys
        yield Suggestion(kind="overtaking", text=text, config={"scheduler": table})


def end_lease(search: Search) -> Suggestion | None:
    """Return a change that ends another reservation, so that one of its slots can serve the waiting reservation. Return
    None if no such change ends the wait. Reservations with the fewest and smallest leases are tried first.
    """
    owners: dict[str, str] = {}
    for slot, _ in list_slots(search):
        for owner, _ in search.view.leases_of(slot.id):
            owners.setdefault(owner, slot.id)
    holders = [search.view.reservations[owner] for owner in owners if owner in search.view.reservations]
    return search.find_first(
        Suggestion(
            kind="release",
            text=f"the end of {holder.id}, which holds {owners[holder.id]}, would do",
            rows=(msgspec.structs.replace(holder, phase="released", leases=()),),
        )
        for holder in sorted(holders, key=_rank_of_holder)[:MOST_CANDIDATES]
    )


def _rank_of_holder(holder: Reservation) -> tuple[int, float, int]:
    held = sum(sum(lease.resources.values()) for lease in holder.leases)
    return len(holder.leases), held, holder.sequence


def _first_of(list_changes: Candidates) -> Kind:
    """Return a function that tries the changes which `list_changes` yields, in order. It returns the first change that
    would end the reservation's wait, or None.
    """
    return lambda search: search.find_first(list_changes(search))


OPENERS: Final[tuple[Candidates, ...]] = (
    list_freed,
    list_uncordoned,
    list_waits,
    list_account_waits,
    list_freed_work,
    list_offerings_more,
    list_leases_more,
    list_overtaking,
)
"""Functions for `combine_two`, which tries changes in pairs. Each function lists changes of one kind, and each of these
changes may be the first one of a pair. Only kinds of change without an amount are here, e.g. to uncordon a slot.
"""
SINGLE_KINDS: Final[tuple[Kind, ...]] = (
    _first_of(list_freed),
    _first_of(list_uncordoned),
    _first_of(list_waits),
    _first_of(list_account_waits),
    raise_limit,
    grant_what_is_lacking,
    _first_of(list_freed_work),
    add_slots,
    raise_budgets,
    _first_of(list_offerings_more),
    raise_price_factor,
    _first_of(list_leases_more),
    _first_of(list_overtaking),
    grant_balance,
    end_lease,
)
"""Functions that each search for one kind of change, in the order in which they are called. Kinds of change that cost
nothing come first.
"""
KINDS_OF_CHANGE: Final[tuple[Kind, ...]] = (
    *SINGLE_KINDS,
    lambda search: combine_two(search, OPENERS, SINGLE_KINDS),
)
"""All functions that search for a change, in the order in which they are called: single changes, then pairs of
changes.
"""
