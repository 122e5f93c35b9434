"""Changes of slots that may end a reservation's wait: uncordon a slot, enlarge a host, add labels to a host, add
hosts.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from itertools import islice, repeat
from typing import Final

import msgspec

from scheduler.explain.search import (
    MOST_CANDIDATES,
    Search,
    Suggestion,
    count_wanted,
    describe_labels,
    find_lacking,
    list_components,
    list_hosts,
    list_pools,
    list_slots,
    required_labels,
)
from scheduler.model.pools import Pool
from scheduler.model.reservations import list_instances
from scheduler.model.resources import SLACK, Resources, has_labels, shape_of
from scheduler.model.slots import Slot
from scheduler.policy.capacity.fits import capacity_of, given_to

MOST_RIVALS: Final = 16
"""The greatest number of pending instances whose requests are added up: they may take added capacity before the
reservation whose wait is explained.
"""
MOST_SUMS: Final = 200
"""Limit of the number of sums of requests that `_list_sums` computes for a pool. No request is added to the sums once
there are this many. Each sum is a size that an enlarged host may get.
"""
MOST_SIZES: Final = 48
"""The greatest number of ways to enlarge a host that one search for a change tries."""
Missing = dict[str, float]


def list_uncordoned(search: Search) -> Iterator[Suggestion]:
    """Yield changes that each uncordon one slot: a cordoned ready slot of a pool that may serve the reservation."""
    cordoned = (slot for slot, _ in list_slots(search) if slot.cordoned)
    for slot in islice(cordoned, MOST_CANDIDATES):
        yield Suggestion(
            kind="cordon",
            text=f"slot {slot.id} would do and is cordoned",
            rows=(msgspec.structs.replace(slot, cordoned=False),),
        )


def enlarge_slot(search: Search) -> Suggestion | None:
    """Return a change that gives one host larger resources, so that the reservation's wait ends. Return None if no such
    change ends it. Changes of the fewest resources are tried first, then those with the smallest amounts.

    If earlier reservations in the queue would take the added capacity, the host becomes large enough for these
    reservations too.
    """
    found: list[tuple[int, float, int, Slot, Pool, Missing]] = []
    for component in list_components(search.reservation):
        sums = {name: _list_sums(search, name, given_to(component, pool)) for name, pool in list_pools(search)}
        required = required_labels(search.reservation, component)
        for slot, pool in _list_different(search):
            if not search.may_go_on():
                return None
            for missing in _list_missing(search, slot, pool, sums) if has_labels(slot.labels, required) else ():
                found.append((len(missing), sum(missing.values()), len(found), slot, pool, missing))
    least = nsmallest(MOST_SIZES, found, key=lambda each: each[:3])
    return search.find_first(_with_larger(slot, pool, missing) for *_, slot, pool, missing in least)


def _list_different(search: Search) -> Iterator[tuple[Slot, Pool]]:
    """Yield (host's slot, pool) for each host that the search tries to enlarge. Among hosts that are alike, at most as
    many are yielded as the reservation has essential instances, and at most MOST_CANDIDATES. Hosts are alike if, e.g.,
    pool, capacity, used amounts and labels are equal.

    A single one of the hosts that are alike is not enough. Example: instances of a gang that fit already may take the
    first two hosts, so only a third, enlarged host helps.
    """
    instances = list_instances(search.reservation.request, "essential")
    seen, most = Counter[Hashable](), min(len(instances), MOST_CANDIDATES)
    for slot, pool in list_hosts(search):
        alike = (
            slot.pool,
            shape_of(capacity_of(slot, pool) or {}),
            shape_of(_used_on(search, slot)),
            shape_of(slot.labels),
            len(search.view.leases_of(slot.id)),
            slot.uses if pool.max_uses else 0,
            slot.id in search.reservation.declined,
        )
        if not slot.cordoned and seen[alike] < most:
            seen[alike] += 1
            yield slot, pool


def _with_larger(slot: Slot, pool: Pool, missing: Missing) -> Suggestion:
    held = dict(capacity_of(slot, pool) or {})
    larger = {name: held.get(name, 0) + missing.get(name, 0) for name in {**held, **missing}}
    words = ", ".join(f"{amount:g} more {name}" for name, amount in sorted(missing.items()))
    return Suggestion(
        kind="resources",
        text=f"needs {words} on one slot ({slot.id})",
        rows=(msgspec.structs.replace(slot, resources=larger),),
    )


def _list_missing(search: Search, slot: Slot, pool: Pool, sums: Mapping[str, list[Missing]]) -> Iterator[Missing]:
    """Yield the amounts by resource by which the slot is too small, once for each sum of the slot's pool. The slot is
    to hold its present leases and, in addition, the amounts of the sum. Sums that fit already are skipped. `sums`: pool
    -> its sums, each the total of the requests of some pending instances (`_list_sums`).
    """
    capacity = capacity_of(slot, pool)
    if capacity is None:
        return
    used = _used_on(search, slot)
    for together in sums[slot.pool]:
        lacking = {
            name: amount + used.get(name, 0) - capacity.get(name, 0) for name, amount in together.items() if amount > 0
        }
        if missing := {name: amount for name, amount in lacking.items() if amount > SLACK}:
            yield missing


def _list_sums(search: Search, pool: str, wanted: Resources) -> list[Missing]:
    """Return the totals (resource -> amount in this pool) of possible sets of pending instances. For instances A and B:
    nothing, A, B, A + B. At most MOST_RIVALS instances are combined: first those with the amounts `wanted`, the request
    of the waiting reservation, then the smallest others.

    The free capacity of an enlarged slot should equal one of these sums, because a size between two sums serves no
    further request. Sums without `wanted` are included: if an earlier reservation blocks the queue, capacity for that
    reservation may be enough.
    """
    sums: dict[tuple[float, ...], Missing] = {(0.0,) * len(wanted): dict.fromkeys(wanted, 0.0)}
    for resources in nsmallest(
        MOST_RIVALS, _list_pending_amounts(search, pool), key=lambda each: (each != wanted, sum(each.values()))
    ):
        for known in list(sums.values()) if len(sums) < MOST_SUMS else ():
            larger = {name: known[name] + resources.get(name, 0) for name in wanted}
            sums.setdefault(tuple(larger.values()), larger)
    return list(sums.values())


def _list_pending_amounts(search: Search, name: str) -> Iterator[Resources]:
    """Yield the amounts by resource that each instance of each pending reservation would get in this pool. Of
    reservations with equal requests, at most MOST_RIVALS are counted.
    """
    shapes = Counter(search.view.shapes[each] for each in search.view.by_phase["pending"])
    for shape, count in shapes.items():
        for instance in shape.essential:
            given = given_to(instance.component, search.rules.pools[name])
            yield from repeat(given, min(count, MOST_RIVALS))


def _used_on(search: Search, slot: Slot) -> Missing:
    used: Missing = {}
    for _, lease in search.view.leases_of(slot.id):
        for name, amount in lease.resources.items() if lease.epoch == slot.epoch else ():
            used[name] = used.get(name, 0) + amount
    return used


def list_relabelled(search: Search) -> Iterator[Suggestion]:
    """Yield changes that add labels to one host: those that the reservation requires and the host lacks. The change
    with the fewest labels comes first.
    """
    found = [
        (len(lacking), number, slot, lacking)
        for component in list_components(search.reservation)
        for number, (slot, _) in enumerate(list_hosts(search))
        if not slot.cordoned and (lacking := find_lacking(slot.labels, required_labels(search.reservation, component)))
    ]
    for *_, slot, lacking in sorted(found, key=lambda each: each[:2])[:MOST_CANDIDATES]:
        yield Suggestion(
            kind="labels",
            text=f"needs {describe_labels(lacking)} on one slot ({slot.id})",
            rows=(msgspec.structs.replace(slot, labels={**slot.labels, **lacking}),),
        )


def add_hosts(search: Search) -> Suggestion | None:
    """Return a change that adds hosts to a static pool so that the reservation's wait ends. The change adds the
    smallest number of hosts with this effect. The new hosts are copies of an existing host, or have the `resources` of
    the pool. Return None if no number of hosts ends the wait.
    """
    return _add_hosts(search, _list_known_hosts)


def add_hosts_that_fit(search: Search) -> Suggestion | None:
    """Return a change that adds hosts of a suitable size to a static pool so that the reservation's wait ends. The
    change adds the smallest number of hosts with this effect. Each new host is large enough for one component of the
    reservation. If such hosts do not end the wait, each new host is large enough for any component. Return None if no
    number of hosts ends the wait.
    """
    return _add_hosts(search, _list_fitting_hosts)


def _add_hosts(search: Search, list_hosts: Callable[[Search, str, Pool], Iterable["_Host"]]) -> Suggestion | None:
    pools = [(name, pool) for name, pool in list_pools(search) if not pool.is_elastic]
    hosts = (host for name, pool in pools for host in islice(list_hosts(search, name, pool), MOST_CANDIDATES))
    return search.find_least_of((partial(host.add, search.now) for host in hosts), count_wanted(search))


@dataclass(frozen=True)
class _Host:
    """A description of hosts that could be added to a static pool. `words`: what the suggestion's text writes about
    them.
    """

    pool: str
    resources: dict[str, float] | None
    labels: dict[str, str]
    words: str

    def add(self, now: float, more: int) -> Suggestion:
        """Return the change that adds `more` hosts of this description to the pool."""
        hosts = tuple(
            Slot(
                id=f"{self.pool}-more-{number}",
                pool=self.pool,
                state="ready",
                resources=self.resources,
                labels=self.labels,
                since=now,
                last_seen=now,
            )
            for number in range(1, more + 1)
        )
        count = "one more host" if more == 1 else f"{more} more hosts"
        return Suggestion(kind="hosts", text=f"{count} {self.words} would do", rows=hosts)


def _list_known_hosts(search: Search, name: str, pool: Pool) -> Iterator[_Host]:
    models = {
        (shape_of(slot.resources or {}), shape_of(slot.labels)): slot
        for slot, other in reversed(list(list_slots(search)))
        if other is pool
    }
    for model in models.values():
        yield _Host(name, model.resources, model.labels, f"like {model.id}")
    if pool.resources is not None:
        yield _Host(name, None, pool.labels, f"in pool {name}")


def _list_fitting_hosts(search: Search, name: str, pool: Pool) -> Iterator[_Host]:
    wanted = [
        (given_to(each, pool), {**pool.labels, **required_labels(search.reservation, each)})
        for each in list_components(search.reservation)
    ]
    most: dict[str, float] = {}
    every: dict[str, str] = {}
    for resources, labels in wanted:
        most |= {key: max(amount, most.get(key, 0)) for key, amount in resources.items()}
        every |= labels
    for resources, labels in (*wanted, (most, every)):
        words = [f"{amount:g} {key}" for key, amount in sorted(resources.items()) if amount > 0]
        words += [describe_labels(labels)] if labels else []
        size = f"with {', '.join(words)}" if words else "of any size"
        yield _Host(name, dict(resources) or None, labels, f"{size} in pool {name}")
