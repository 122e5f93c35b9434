"""The kinds of change that could end a wait, for `suggest.py`: each finds its own smallest one.

Candidates come from the rows and the rules; whether one serves is asked of the plan alone. So a candidate that is
thought of wrongly costs a plan, never a wrong answer. Here are those of reservations and of the queue; those of slots
and of pools have modules of their own.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from scheduler.explain.candidates import MOST_CANDIDATES, list_pools, list_slots
from scheduler.explain.changes.accounts import (
    grant_balance,
    grant_what_is_lacking,
    list_account_waits,
    list_freed_work,
    raise_limit,
)
from scheduler.explain.changes.pools import (
    add_pool,
    add_slots,
    list_larger_machines,
    list_leases_more,
    list_new_pools,
    list_offerings_more,
    list_relabelled_pools,
    raise_price_factor,
)
from scheduler.explain.changes.slots import (
    add_hosts,
    add_hosts_that_fit,
    enlarge_slot,
    list_relabelled,
    list_uncordoned,
)
from scheduler.explain.combine import Candidates, combine_two
from scheduler.explain.conditions import describe_subject
from scheduler.explain.search import Kind, Search, Suggestion
from scheduler.model.reservations import Reservation, is_on_hold


def list_freed(search: Search) -> Iterator[Suggestion]:
    """A suspended one is resumed, one of priority 0 gets 1."""
    reservation = search.reservation
    if is_on_hold(reservation):
        words = "it would be placed if it were resumed" if reservation.suspended else "a priority above 0 would do"
        freed = msgspec.structs.replace(reservation, suspended=False, priority=reservation.priority or 1)
        yield Suggestion(kind="hold", text=words, rows=(freed,))


def list_waits(search: Search) -> Iterator[Suggestion]:
    """Holds after refusals of the cloud end by themselves: the one that ends first."""
    pools = {name for name, _ in list_pools(search)}
    holds = [each for each in search.view.holds.values() if each.pool in pools | {"*"} and each.until > search.now]
    for hold in sorted(holds, key=lambda each: (each.until, each.id)):
        if hold.kind != "strangers":
            yield Suggestion(
                kind="wait",
                text=f"the hold on {describe_subject(hold)} ({hold.kind}) ends in {hold.until - search.now:.0f} s",
                wait_seconds=hold.until - search.now,
            )


def list_overtaking(search: Search) -> Iterator[Suggestion]:
    """Those behind one that does not fit may go first, whoever waits for how long."""
    settings = search.rules.settings_of(search.reservation.request.pool, search.reservation.request.system)
    changes: list[tuple[str, dict[str, Any]]] = []
    if not settings.backfill:
        changes.append(("with backfill it would not wait for one before it in the queue", {"backfill": True}))
    if settings.starvation_guard:
        changes.append(("the starvation_guard keeps slots for one before it", {"starvation_guard": 0}))
    queue = search.rules.queue_of(search.reservation.request.pool, search.reservation.request.system)
    for text, keys in changes:
        table = {"system": {queue: keys}} if queue else keys
        yield Suggestion(kind="overtaking", text=text, config={"scheduler": table})


def end_lease(search: Search) -> Suggestion | None:
    """One reservation ends that holds a slot which could serve it: the one that holds least."""
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
    """The kind whose changes are these, the smallest one first."""
    return lambda search: search.find_first(list_changes(search))


OPENERS: Final[tuple[Candidates, ...]] = (
    list_freed,
    list_uncordoned,
    list_waits,
    list_account_waits,
    list_freed_work,
    list_new_pools,
    list_relabelled,
    list_relabelled_pools,
    list_offerings_more,
    list_larger_machines,
    list_leases_more,
    list_overtaking,
)
"""Changes that are made or not, and have no measure."""
SINGLE_KINDS: Final[tuple[Kind, ...]] = (
    _first_of(list_freed),
    _first_of(list_uncordoned),
    _first_of(list_waits),
    _first_of(list_account_waits),
    raise_limit,
    grant_what_is_lacking,
    _first_of(list_freed_work),
    add_slots,
    enlarge_slot,
    _first_of(list_relabelled),
    _first_of(list_relabelled_pools),
    _first_of(list_offerings_more),
    raise_price_factor,
    _first_of(list_larger_machines),
    add_hosts,
    add_pool,
    _first_of(list_leases_more),
    _first_of(list_overtaking),
    grant_balance,
    end_lease,
)
"""In the order in which they are tried: what costs nothing first."""
KINDS_OF_CHANGE: Final[tuple[Kind, ...]] = (
    *SINGLE_KINDS,
    lambda search: combine_two(search, OPENERS, SINGLE_KINDS),
    add_hosts_that_fit,
    lambda search: combine_two(search, OPENERS, [add_hosts_that_fit]),
)
"""Two together only where no single one would do; hosts that are made for it only where nothing else would."""
