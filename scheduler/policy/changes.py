"""The kinds of change that could end a wait, for `suggest.py`: each finds its own smallest one.

Candidates come from the rows and the rules; whether one serves is asked of the plan alone. So a candidate that is
thought of wrongly costs a plan, never a wrong answer.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import ceil
from typing import Any, Final

import msgspec

from scheduler.model.holds import Hold
from scheduler.model.labels import Labels, has_labels
from scheduler.model.reservations import Component, Reservation, is_on_hold, list_instances
from scheduler.model.resources import SLACK, Resources, fits
from scheduler.model.rules import Offering, Pool
from scheduler.model.slots import Slot
from scheduler.policy.needs import given_to
from scheduler.policy.places import capacity_of
from scheduler.policy.suggest import Kind, Search, Suggestion

MOST_SLOTS_MORE: Final = 64
"""So many more slots, and no more, are thought of."""
MOST_CANDIDATES: Final = 12
"""Of one kind where there may be as many as there are slots."""
MOST_RIVALS: Final = 16
"""Of those who might take the room that is made for one."""
MOST_SUMS: Final = 200
"""Of what they ask for."""
MOST_SIZES: Final = 48
"""Of larger slots that are tried."""
_STEPS: Final = 10_000
"""A price factor is told to four digits."""
Missing = dict[str, float]


def take_off_hold(search: Search) -> Suggestion | None:
    """A suspended one is resumed, one of priority 0 gets 1."""
    reservation = search.reservation
    if not is_on_hold(reservation):
        return None
    words = "it would be placed if it were resumed" if reservation.suspended else "a priority above 0 would do"
    freed = msgspec.structs.replace(reservation, suspended=False, priority=reservation.priority or 1)
    return search.find_first([Suggestion(kind="hold", text=words, rows=(freed,))])


def uncordon(search: Search) -> Suggestion | None:
    """One slot takes leases again."""
    return search.find_first(
        Suggestion(
            kind="cordon",
            text=f"slot {slot.id} would do and is cordoned",
            rows=(msgspec.structs.replace(slot, cordoned=False),),
        )
        for slot, _ in islice(_list_slots(search), MOST_CANDIDATES)
        if slot.cordoned
    )


def wait_for_hold(search: Search) -> Suggestion | None:
    """Holds after refusals of the cloud end by themselves: the one that ends first."""
    pools = {name for name, _ in _list_pools(search)}
    holds = [each for each in search.view.holds.values() if each.pool in pools | {"*"} and each.until > search.now]
    return search.find_first(
        Suggestion(
            kind="wait",
            text=f"the hold on {describe_subject(hold)} ({hold.kind}) ends in {hold.until - search.now:.0f} s",
            wait_seconds=hold.until - search.now,
        )
        for hold in sorted(holds, key=lambda each: (each.until, each.id))
        if hold.kind != "strangers"
    )


def describe_subject(hold: Hold) -> str:
    """What a hold keeps from being launched, in words."""
    pool = "every pool" if hold.pool == "*" else f"pool {hold.pool}"
    if hold.kind == "unhealthy" or not hold.subject:
        return pool
    return f"{hold.subject} of {pool}"


def add_slots(search: Search) -> Suggestion | None:
    """More slots in one pool, or over all pools: the fewest."""
    wanted = _count_wanted(search)
    found: list[tuple[int, Suggestion]] = []
    for name, pool in _list_pools(search):
        most = pool.max_slots
        if pool.is_elastic and most is not None:
            change = search.find_least(lambda more, name=name, most=most: _with_slots(name, most, more), wanted)  # type: ignore[misc]
            if change is not None:
                found.append((change.config["pools"][name]["max_slots"] - most, change))
    if found:
        return min(found, key=lambda each: each[0])[1]
    return _add_slots_over_all(search, wanted)


def _with_slots(name: str, most: int, more: int) -> Suggestion:
    return Suggestion(
        kind="max_slots",
        text=f"pool {name} is at its max_slots of {most}: {most + more} would do",
        rows=tuple(Slot(id=f"{name}-{most + number}", pool=name) for number in range(1, more + 1)),
        config={"pools": {name: {"max_slots": most + more}}},
    )


def _add_slots_over_all(search: Search, wanted: int) -> Suggestion | None:
    scheduler = search.rules.scheduler
    tables: list[tuple[str, int, dict[str, Any]]] = [("scheduler", scheduler.max_slots, {})]
    tables += [(f"scheduler.system.{name}", own.max_slots, {"system": name}) for name, own in scheduler.system.items()]
    for path, most, where in tables:
        if most:
            change = search.find_least(
                lambda more, path=path, most=most, where=where: _with_more_over_all(path, most, more, where),  # type: ignore[misc]
                wanted,
            )
            if change is not None:
                return change
    return None


def _with_more_over_all(path: str, most: int, more: int, where: Mapping[str, str]) -> Suggestion:
    table: dict[str, Any] = {"max_slots": most + more}
    return Suggestion(
        kind="max_slots",
        text=f"{path}.max_slots is {most}: {most + more} would do",
        config={"scheduler": {"system": {where["system"]: table}} if where else table},
    )


def enlarge_slot(search: Search) -> Suggestion | None:
    """What a slot lacks to take one instance more: the fewest names first, then the least of them.

    Where others before it in the queue would take that room, as much more as they ask for.
    """
    found: list[tuple[int, float, int, Slot, Pool, Missing]] = []
    for slot, pool in _list_slots(search):
        for missing in _list_missing(search, slot, pool) if not slot.cordoned else ():
            found.append((len(missing), sum(missing.values()), len(found), slot, pool, missing))
    least = sorted(found, key=lambda each: each[:3])[:MOST_SIZES]
    return search.find_first(_with_larger(slot, pool, missing) for *_, slot, pool, missing in least)


def _with_larger(slot: Slot, pool: Pool, missing: Missing) -> Suggestion:
    held = dict(capacity_of(slot, pool) or {})
    larger = {name: held.get(name, 0) + missing.get(name, 0) for name in {**held, **missing}}
    words = ", ".join(f"{amount:g} more {name}" for name, amount in sorted(missing.items()))
    return Suggestion(
        kind="resources",
        text=f"needs {words} on one slot ({slot.id})",
        rows=(msgspec.structs.replace(slot, resources=larger),),
    )


def _list_missing(search: Search, slot: Slot, pool: Pool) -> Iterator[Missing]:
    """Name by name what the slot lacks for one instance, for that one behind others, and for those."""
    capacity, component = capacity_of(slot, pool), _only_component(search.reservation)
    if capacity is None or component is None:
        return
    if not has_labels(slot.labels, _required(search.reservation, component)):
        return
    wanted, used = given_to(component, pool), _used_on(search, slot)
    for together in _list_sums(search, pool, wanted):
        lacking = {
            name: amount + used.get(name, 0) - capacity.get(name, 0) for name, amount in together.items() if amount > 0
        }
        if missing := {name: amount for name, amount in lacking.items() if amount > SLACK}:
            yield missing


def _list_sums(search: Search, pool: Pool, wanted: Resources) -> list[Missing]:
    """What may be put on the slot: any of the smallest asks together. The least that serves is what one of these sums
    lacks, for only there does it change who fits. (Not always with its own ask among them: where one before it
    blocks the queue, room for that one will do.)
    """
    others = list(search.view.by_phase["pending"].values())
    asked = [
        given_to(instance.component, pool) for each in others for instance in list_instances(each.request, "essential")
    ]
    sums: dict[tuple[float, ...], Missing] = {(0.0,) * len(wanted): dict.fromkeys(wanted, 0.0)}
    own_first = sorted(asked, key=lambda each: (each != wanted, sum(each.values())))
    for resources in own_first[:MOST_RIVALS]:
        for known in list(sums.values()) if len(sums) < MOST_SUMS else ():
            larger = {name: known[name] + resources.get(name, 0) for name in wanted}
            sums.setdefault(tuple(larger.values()), larger)
    return list(sums.values())


def _used_on(search: Search, slot: Slot) -> Missing:
    used: Missing = {}
    for _, lease in search.view.leases_of(slot.id):
        for name, amount in lease.resources.items() if lease.epoch == slot.epoch else ():
            used[name] = used.get(name, 0) + amount
    return used


def relabel_slot(search: Search) -> Suggestion | None:
    """Labels that a slot lacks, the fewest first."""
    component = _only_component(search.reservation)
    if component is None:
        return None
    required = _required(search.reservation, component)
    found = [
        (len(lacking), number, slot, lacking)
        for number, (slot, _) in enumerate(_list_slots(search))
        if not slot.cordoned and (lacking := {k: v for k, v in required.items() if slot.labels.get(k) != v})
    ]
    return search.find_first(
        Suggestion(
            kind="labels",
            text=f"needs {', '.join(f'{k}={v}' for k, v in sorted(lacking.items()))} on one slot ({slot.id})",
            rows=(msgspec.structs.replace(slot, labels={**slot.labels, **lacking}),),
        )
        for *_, slot, lacking in sorted(found, key=lambda each: each[:2])[:MOST_CANDIDATES]
    )


def add_offering(search: Search) -> Suggestion | None:
    """Offerings that other pools have, the cheapest first."""
    known = [offering for pool in search.rules.pools.values() for offering in pool.offerings]
    return search.find_first(
        Suggestion(
            kind="offering",
            text=f"offering {offering.name} would fit and is not in the pool {name}",
            config={"pools": {name: {"offerings": [*_dump(pool), *_dump_each([offering])]}}},
        )
        for offering in sorted(known, key=lambda each: (each.price, each.name))
        for name, pool in _list_pools(search)
        if pool.is_elastic and offering not in pool.offerings
    )


def raise_price_factor(search: Search) -> Suggestion | None:
    """A dearer offering of its own pools counts as eligible: the one that is dearer by the smallest factor."""
    component = _only_component(search.reservation)
    found: list[tuple[float, str, str]] = []
    for name, pool in _list_pools(search):
        fitting = [each for each in pool.offerings if component is None or _could_be(search, pool, each, component)]
        least = min((each.price for each in fitting), default=0.0)
        found += [(ceil(each.price / least * _STEPS) / _STEPS, name, each.name) for each in fitting if least > 0]
    return search.find_first(
        Suggestion(
            kind="price_factor",
            text=f"offering {offering} would do with a price_factor of {factor:g} in pool {name}",
            config={"pools": {name: {"price_factor": factor}}},
        )
        for factor, name, offering in sorted(found)
        if factor > search.rules.pools[name].price_factor
    )


def _could_be(search: Search, pool: Pool, offering: Offering, component: Component) -> bool:
    held = pool.resources if offering.resources is None else offering.resources
    labels = {**pool.labels, **(offering.labels or {})}
    fitting = held is None or fits(given_to(component, pool), held)
    return fitting and has_labels(labels, _required(search.reservation, component))


def enlarge_pool(search: Search) -> Suggestion | None:
    """Larger machines in one pool: its `resources`, or an offering that nobody has."""
    component = _only_component(search.reservation)
    if component is None:
        return None
    return search.find_first(
        _with_larger_machines(name, pool, given_to(component, pool))
        for name, pool in _list_pools(search)
        if pool.is_elastic and not pool.counts_leases_only
    )


def _with_larger_machines(name: str, pool: Pool, wanted: Resources) -> Suggestion:
    words = ", ".join(f"{amount:g} {key}" for key, amount in sorted(wanted.items()))
    if not pool.offerings:
        held = pool.resources or {}
        larger = {key: max(wanted.get(key, 0), held.get(key, 0)) for key in {**held, **wanted}}
        table: dict[str, Any] = {"resources": larger}
        text = f"needs machines with {words} in pool {name}"
    else:
        price = max(each.price for each in pool.offerings)
        table = {"offerings": [*_dump(pool), {"name": "larger", "price": price, "resources": dict(wanted)}]}
        text = f"needs an offering with {words} in pool {name}"
    return Suggestion(kind="machines", text=text, config={"pools": {name: table}})


def add_hosts(search: Search) -> Suggestion | None:
    """More hosts in a static pool like one that is there, as few as do."""
    wanted = _count_wanted(search)
    for _, pool in _list_pools(search):
        if pool.is_elastic:
            continue
        models = {_shape_of(slot): slot for slot, other in reversed(list(_list_slots(search))) if other is pool}
        for model in islice(models.values(), MOST_CANDIDATES):
            change = search.find_least(lambda more, model=model: _with_hosts(search, model, more), wanted)  # type: ignore[misc]
            if change is not None:
                return change
    return None


def _shape_of(slot: Slot) -> tuple[object, ...]:
    return (tuple(sorted((slot.resources or {}).items())), tuple(sorted(slot.labels.items())))


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


def raise_lease_limit(search: Search) -> Suggestion | None:
    """One lease more on each slot of a pool."""
    return search.find_first(
        Suggestion(
            kind="max_leases_per_slot",
            text=f"pool {name} takes {int(pool.lease_limit)} leases a slot: {int(pool.lease_limit) + 1} would do",
            config={"pools": {name: {"max_leases_per_slot": int(pool.lease_limit) + 1}}},
        )
        for name, pool in _list_pools(search)
        if pool.lease_limit != float("inf")
    )


def allow_overtaking(search: Search) -> Suggestion | None:
    """Those behind one that does not fit may go first, whoever waits for how long."""
    settings = search.rules.settings_of(search.reservation.request.pool, search.reservation.request.system)
    changes: list[tuple[str, dict[str, Any]]] = []
    if not settings.backfill:
        changes.append(("with backfill it would not wait for one before it in the queue", {"backfill": True}))
    if settings.starvation_guard:
        changes.append(("the starvation_guard keeps slots for one before it", {"starvation_guard": 0}))
    queue = search.rules.queue_of(search.reservation.request.pool, search.reservation.request.system)
    return search.find_first(
        Suggestion(kind="overtaking", text=text, config={"scheduler": {"system": {queue: keys}} if queue else keys})
        for text, keys in changes
    )


def end_lease(search: Search) -> Suggestion | None:
    """One reservation ends that holds a slot which could serve it: the one that holds least."""
    owners: dict[str, str] = {}
    for slot, _ in _list_slots(search):
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


KINDS_OF_CHANGE: Final[tuple[Kind, ...]] = (
    take_off_hold,
    uncordon,
    wait_for_hold,
    add_slots,
    enlarge_slot,
    relabel_slot,
    add_offering,
    raise_price_factor,
    enlarge_pool,
    add_hosts,
    raise_lease_limit,
    allow_overtaking,
    end_lease,
)
"""In the order in which they are tried: what costs nothing first."""


def _list_pools(search: Search) -> list[tuple[str, Pool]]:
    request = search.reservation.request
    return [(name, search.rules.pools[name]) for name in search.rules.serving_pools(request.pool, request.system)]


def _list_slots(search: Search) -> Iterable[tuple[Slot, Pool]]:
    """The ready slots of the pools that may serve it, always in the same order."""
    pools = dict(_list_pools(search))
    for slot in sorted(search.view.slots.values(), key=lambda each: (each.pool, len(each.id), each.id)):
        if slot.pool in pools and slot.state == "ready":
            yield slot, pools[slot.pool]


def _count_wanted(search: Search) -> int:
    """Slots that all who wait could use, at most; those before it take theirs first."""
    wanted = 0
    for each in search.view.by_phase["pending"].values():
        wanted += sum(component.count for component in each.request.components if component.kind == "essential")
        if wanted >= MOST_SLOTS_MORE:
            return MOST_SLOTS_MORE
    return wanted


def _only_component(reservation: Reservation) -> Component | None:
    """Its component where it has one essential instance; None for a gang."""
    found = list_instances(reservation.request, "essential")
    return found[0].component if len(found) == 1 else None


def _required(reservation: Reservation, component: Component) -> Labels:
    return {**reservation.request.labels, **component.labels}


def _dump(pool: Pool) -> list[dict[str, Any]]:
    return _dump_each(pool.offerings)


def _dump_each(offerings: Iterable[Offering]) -> list[dict[str, Any]]:
    return [each.model_dump(exclude_unset=True) for each in offerings]
