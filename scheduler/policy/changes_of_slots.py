"""Changes of slots that could end a wait: one takes leases again, holds more, has other labels; more of them."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from heapq import nsmallest
from itertools import islice, repeat
from typing import Final

import msgspec

from scheduler.model.labels import has_labels
from scheduler.model.labels import shape_of as shape_of_labels
from scheduler.model.resources import SLACK, Resources
from scheduler.model.resources import shape_of as shape_of_resources
from scheduler.model.rules import Pool
from scheduler.model.slots import Slot
from scheduler.policy.candidates import (
    MOST_CANDIDATES,
    count_wanted,
    describe_labels,
    find_lacking,
    list_pools,
    list_slots,
    only_component,
    required_labels,
)
from scheduler.policy.needs import given_to
from scheduler.policy.places import capacity_of
from scheduler.policy.suggest import Search, Suggestion

MOST_RIVALS: Final = 16
"""Of those who might take the room that is made for one."""
MOST_SUMS: Final = 200
"""Of what they ask for."""
MOST_SIZES: Final = 48
"""Of larger slots that are tried."""
Missing = dict[str, float]


def list_uncordoned(search: Search) -> Iterator[Suggestion]:
    """One slot takes leases again."""
    cordoned = (slot for slot, _ in list_slots(search) if slot.cordoned)
    for slot in islice(cordoned, MOST_CANDIDATES):
        yield Suggestion(
            kind="cordon",
            text=f"slot {slot.id} would do and is cordoned",
            rows=(msgspec.structs.replace(slot, cordoned=False),),
        )


def enlarge_slot(search: Search) -> Suggestion | None:
    """What a slot lacks to take one instance more: the fewest names first, then the least of them.

    Where others before it in the queue would take that room, as much more as they ask for.
    """
    component = only_component(search.reservation)
    if component is None:
        return None
    sums = {name: _list_sums(search, name, given_to(component, pool)) for name, pool in list_pools(search)}
    required = required_labels(search.reservation, component)
    found: list[tuple[int, float, int, Slot, Pool, Missing]] = []
    for slot, pool in _list_different(search):
        if not search.may_go_on():
            return None
        for missing in _list_missing(search, slot, pool, sums) if has_labels(slot.labels, required) else ():
            found.append((len(missing), sum(missing.values()), len(found), slot, pool, missing))
    least = nsmallest(MOST_SIZES, found, key=lambda each: each[:3])
    return search.find_first(_with_larger(slot, pool, missing) for *_, slot, pool, missing in least)


def _list_different(search: Search) -> Iterator[tuple[Slot, Pool]]:
    """One of all slots that are alike in what a larger one could be used for."""
    seen: set[Hashable] = set()
    for slot, pool in list_slots(search):
        alike = (
            slot.pool,
            shape_of_resources(capacity_of(slot, pool) or {}),
            shape_of_resources(_used_on(search, slot)),
            shape_of_labels(slot.labels),
            len(search.view.leases_of(slot.id)),
            slot.uses if pool.max_uses else 0,
            slot.id in search.reservation.declined,
        )
        if not slot.cordoned and alike not in seen:
            seen.add(alike)
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
    """Name by name what the slot lacks for one instance, for that one behind others, and for those."""
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
    """What may be put on a slot of this pool: any of the smallest asks together. The least that serves is what one of
    these sums lacks, for only there does it change who fits. (Not always with its own ask among them: where one before
    it blocks the queue, room for that one will do.)
    """
    sums: dict[tuple[float, ...], Missing] = {(0.0,) * len(wanted): dict.fromkeys(wanted, 0.0)}
    for resources in nsmallest(
        MOST_RIVALS, _list_asked(search, pool), key=lambda each: (each != wanted, sum(each.values()))
    ):
        for known in list(sums.values()) if len(sums) < MOST_SUMS else ():
            larger = {name: known[name] + resources.get(name, 0) for name in wanted}
            sums.setdefault(tuple(larger.values()), larger)
    return list(sums.values())


def _list_asked(search: Search, name: str) -> Iterator[Resources]:
    """What instances of those who wait are given in this pool; of any number that are alike, no more than count."""
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
    """Labels that a slot lacks, the fewest first."""
    component = only_component(search.reservation)
    if component is None:
        return
    required = required_labels(search.reservation, component)
    found = [
        (len(lacking), number, slot, lacking)
        for number, (slot, _) in enumerate(list_slots(search))
        if not slot.cordoned and (lacking := find_lacking(slot.labels, required))
    ]
    for *_, slot, lacking in sorted(found, key=lambda each: each[:2])[:MOST_CANDIDATES]:
        yield Suggestion(
            kind="labels",
            text=f"needs {describe_labels(lacking)} on one slot ({slot.id})",
            rows=(msgspec.structs.replace(slot, labels={**slot.labels, **lacking}),),
        )


def add_hosts(search: Search) -> Suggestion | None:
    """More hosts in a static pool like one that is there, as few as do."""
    wanted = count_wanted(search)
    for _, pool in list_pools(search):
        if pool.is_elastic:
            continue
        models = {
            (shape_of_resources(slot.resources or {}), shape_of_labels(slot.labels)): slot
            for slot, other in reversed(list(list_slots(search)))
            if other is pool
        }
        for model in islice(models.values(), MOST_CANDIDATES):
            change = search.find_least(lambda more, model=model: _with_hosts(search, model, more), wanted)  # type: ignore[misc]
            if change is not None:
                return change
    return None


def _with_hosts(search: Search, model: Slot, more: int) -> Suggestion:
    new = (Slot(id=f"{model.pool}-more-{number}", pool=model.pool, state="ready") for number in range(1, more + 1))
    hosts = tuple(
        msgspec.structs.replace(
            each, resources=model.resources, labels=model.labels, since=search.now, last_seen=search.now
        )
        for each in new
    )
    count = "one more host" if more == 1 else f"{more} more hosts"
    return Suggestion(kind="hosts", text=f"{count} like {model.id} would do", rows=hosts)
