"""The smallest change that would end a wait, found by asking the engine itself: what if?

Each kind of change is tried on a copy of the view or the rules, least first, and a plan is made of that; what is
suggested is a change under which the plan serves the reservation, and no smaller one of its kind does. So there is
no second set of rules that could say something else than the tick.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from scheduler.model.decisions import Assign, Plan
from scheduler.model.labels import has_labels
from scheduler.model.reservations import Reservation
from scheduler.model.resources import SLACK
from scheduler.model.rules import Pool, Rules
from scheduler.model.slots import Slot
from scheduler.model.view import Row, View
from scheduler.policy.place import is_on_hold
from scheduler.policy.places import capacity_of
from scheduler.policy.plan import plan
from scheduler.policy.rooms import given_to

MOST_SLOTS_MORE = 64
"""So many more slots, and no more, are thought of."""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """One change that would end the wait: prose, and what exactly it is, as rows and rules that could be applied."""

    kind: str
    text: str
    rows: tuple[Row, ...] = ()
    """Rows as they would be."""
    pools: Mapping[str, Mapping[str, Any]] = {}
    """Keys of pools as they would be."""


def suggest_change(view: View, rules: Rules, reservation: Reservation, now: float) -> Suggestion | None:
    """The first of these that would serve it, by a lease or by a machine on its way: to take it off hold; to
    uncordon a slot; more slots in a pool; what one slot lacks; an offering that another pool has.

    None when it does not wait, or when none of these alone would end its wait.
    """
    if reservation.phase != "pending" or _is_served(plan(view, rules, now), reservation.id):
        return None
    for kind in (_take_off_hold, _uncordon, _add_slots, _enlarge_slot, _add_offering):
        for change in kind(view, rules, reservation):
            if _would_serve(view, rules, reservation, now, change):
                return change
    return None


def apply_change(view: View, rules: Rules, change: Suggestion) -> tuple[View, Rules]:
    """View and rules as they would be with that change."""
    present: dict[tuple[type, str], Row] = {}
    for row in (*view.slots.values(), *view.reservations.values(), *view.holds.values(), *change.rows):
        present[type(row), row.id] = row
    pools = {name: pool.model_copy(update=dict(change.pools.get(name, {}))) for name, pool in rules.pools.items()}
    for pool in pools.values():
        pool.__dict__.pop("offering_by_key", None)
    return View(present.values()), rules.model_copy(update={"pools": pools})


def _would_serve(view: View, rules: Rules, reservation: Reservation, now: float, change: Suggestion) -> bool:
    changed, with_it = apply_change(view, rules, change)
    return _is_served(plan(changed, with_it, now), reservation.id)


def _is_served(outcome: Plan, name: str) -> bool:
    """Whether the plan leases it, or has all that it needs on its way."""
    if any(isinstance(each, Assign) and each.reservation == name for each in outcome.decisions):
        return True
    return any(each.reservation == name and each.code == "booting" for each in outcome.waiting)


def _take_off_hold(_view: View, _rules: Rules, reservation: Reservation) -> Iterator[Suggestion]:
    if is_on_hold(reservation):
        words = "it would be placed if it were resumed" if reservation.suspended else "a priority above 0 would do"
        freed = msgspec.structs.replace(reservation, suspended=False, priority=reservation.priority or 1)
        yield Suggestion(kind="hold", text=words, rows=(freed,))


def _serving(rules: Rules, reservation: Reservation) -> Iterator[tuple[str, Pool]]:
    request = reservation.request
    for name in rules.serving_pools(request.pool, request.system):
        yield name, rules.pools[name]


def _slots_of(view: View, rules: Rules, reservation: Reservation) -> Iterator[tuple[Slot, Pool]]:
    """The ready slots that may serve it, in no particular order of merit but always the same one."""
    pools = dict(_serving(rules, reservation))
    for slot in sorted(view.slots.values(), key=lambda each: (each.pool, len(each.id), each.id)):
        if slot.pool in pools and slot.state == "ready":
            yield slot, pools[slot.pool]


def _uncordon(view: View, rules: Rules, reservation: Reservation) -> Iterator[Suggestion]:
    for slot, _ in _slots_of(view, rules, reservation):
        if slot.cordoned:
            freed = msgspec.structs.replace(slot, cordoned=False)
            yield Suggestion(kind="cordon", text=f"slot {slot.id} would do and is cordoned", rows=(freed,))


def _add_slots(_view: View, rules: Rules, reservation: Reservation) -> Iterator[Suggestion]:
    """One more, two more, … in each pool: as many as it has instances, at most."""
    wanted = sum(each.count for each in reservation.request.components if each.kind == "essential")
    for more in range(1, min(wanted, MOST_SLOTS_MORE) + 1):
        for name, pool in _serving(rules, reservation):
            if pool.is_elastic and pool.max_slots is not None:
                yield _with_more_slots(name, pool.max_slots, more)


def _with_more_slots(name: str, most: int, more: int) -> Suggestion:
    new = tuple(Slot(id=f"{name}-{most + number}", pool=name) for number in range(1, more + 1))
    text = f"pool {name} is at its max_slots of {most}: {most + more} would do"
    return Suggestion(kind="max_slots", text=text, rows=new, pools={name: {"max_slots": most + more}})


def _enlarge_slot(view: View, rules: Rules, reservation: Reservation) -> Iterator[Suggestion]:
    """What a slot lacks to take one instance more; the fewest names first, then the least."""
    found: list[tuple[int, float, int, Slot, Pool, dict[str, float]]] = []
    for slot, pool in _slots_of(view, rules, reservation):
        missing = _find_missing(view, reservation, slot, pool)
        if missing and not slot.cordoned:
            found.append((len(missing), sum(missing.values()), len(found), slot, pool, missing))
    for *_, slot, pool, missing in sorted(found, key=lambda each: each[:3]):
        held = dict(capacity_of(slot, pool) or {})
        larger = {name: held.get(name, 0) + missing.get(name, 0) for name in {**held, **missing}}
        words = ", ".join(f"{amount:g} more {name}" for name, amount in sorted(missing.items()))
        grown = msgspec.structs.replace(slot, resources=larger)
        yield Suggestion(kind="resources", text=f"needs {words} on one slot ({slot.id})", rows=(grown,))


def _find_missing(view: View, reservation: Reservation, slot: Slot, pool: Pool) -> dict[str, float]:
    """Name by name what the slot lacks for the essential components of one instance; {} = that is not it."""
    capacity = capacity_of(slot, pool)
    essential = [each for each in reservation.request.components if each.kind == "essential"]
    if capacity is None or len(essential) != 1 or essential[0].count != 1:
        return {}
    required = {**reservation.request.labels, **essential[0].labels}
    if not has_labels(slot.labels, required):
        return {}
    used: dict[str, float] = {}
    for _, lease in view.leases_of(slot.id):
        for name, amount in lease.resources.items() if lease.epoch == slot.epoch else ():
            used[name] = used.get(name, 0) + amount
    wanted = given_to(essential[0], pool)
    lacking = {
        name: amount + used.get(name, 0) - capacity.get(name, 0) for name, amount in wanted.items() if amount > 0
    }
    return {name: amount for name, amount in lacking.items() if amount > SLACK}


def _add_offering(_view: View, rules: Rules, reservation: Reservation) -> Iterator[Suggestion]:
    """Offerings that other pools have, the cheapest first."""
    known = [offering for pool in rules.pools.values() for offering in pool.offerings]
    for offering in sorted(known, key=lambda each: (each.price, each.name)):
        for name, pool in _serving(rules, reservation):
            if pool.is_elastic and offering not in pool.offerings:
                text = f"offering {offering.name} would fit and is not in the pool {name}"
                yield Suggestion(kind="offering", text=text, pools={name: {"offerings": (*pool.offerings, offering)}})
