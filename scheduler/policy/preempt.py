"""Better work takes the place of worse work, and takes over what that has cost. Source: qscheduler.

The account of the victim gets the whole cost back, the account of the newcomer pays it, and the newcomer's lease starts
with it, so that a later preemptor pays for the whole chain. The sum of balances stays.
"""

import msgspec

from scheduler.model.accounts import Levels
from scheduler.model.decisions import Preempt
from scheduler.model.labels import has_labels
from scheduler.policy.lots import Lines, Lot
from scheduler.policy.places import Place
from scheduler.policy.rounds import Round, make_leases, name_placements
from scheduler.policy.running import Run
from scheduler.policy.victims import choose_victims, sum_costs


def preempt(tick: Round, level: int) -> None:
    """At one paid level: slots with worse work, the cheapest first, then in slot order, are each taken by the first
    reservation whose labels the slot has, whose account is neither barred nor at a limit, and has strictly more than
    the victims cost (lexicographically, as its balance then is).

    Barred is who has any lease at a worse level as the step begins. A reservation with several instances preempts
    only where all of them fit on that slot. Of each slot at most one preemption a tick.
    """
    lots = _list_preemptors(tick, level)
    if not lots:
        return
    step = _Preemption(tick, lots, level)
    for victims, place in _list_targets(tick, level):
        if not step.take(place, victims):
            break


def _list_preemptors(tick: Round, level: int) -> list[Lot]:
    barred: dict[str, bool] = {}
    lots = []
    for lot in tick.list_open(level):
        if lot.account is None or not lot.demand.settings.preemption:
            continue
        name = lot.account.id
        if name not in barred:
            barred[name] = tick.running.has_worse(name, level)
        if not barred[name]:
            lots.append(lot)
    return lots


def _list_targets(tick: Round, level: int) -> list[tuple[list[Run], Place]]:
    """The slots with victims and these, cheapest first; the slots in the order of their cheapest one."""
    places = {place.slot.id: place for place in tick.places if not place.pool.recycle_unclean}
    found: dict[Place, list[Run]] = {}
    for run in tick.running.runs.values():
        if run.level > level and run.state == "held" and run.reservation.request.preemptible and _has_run(tick, run):
            for slot in {lease.slot: None for lease in run.leases}:
                if (place := places.get(slot)) is not None and place not in tick.preempted:
                    found.setdefault(place, []).append(run)
    for runs in found.values():
        runs.sort(key=lambda run: run.rank)
    return sorted(((runs, place) for place, runs in found.items()), key=lambda each: (each[0][0].cost, each[1].order))


def _has_run(tick: Round, run: Run) -> bool:
    """Whether all its leases are as old as `min_run_time` asks for."""
    least = tick.draft.settings_of(run.reservation).min_run_time
    return not least or tick.draft.is_due(max(lease.assigned_at for lease in run.leases) + least)


class _Preemption:
    def __init__(self, tick: Round, lots: list[Lot], level: int) -> None:
        self._tick, self._level = tick, level
        self._left = tick.draft.balances.left
        self._lines: Lines[list[Run]] = Lines(((lot.required, lot) for lot in lots), self._is_out)
        self._payers = {lot.account.id for lot in lots if lot.account}
        self._least: Levels | None = None
        """What the cheapest victim of this slot costs; on later slots they cost no less, and no payer earns."""

    def take(self, place: Place, runs: list[Run]) -> bool:
        """Let the first one who may preempt these; False if nobody could pay for any victim from here on."""
        self._least = runs[0].cost
        if all(self._left[name] <= self._least for name in self._payers):
            return False
        runs = [run for run in runs if run.state == "held" and run.reservation.id in self._tick.running.runs]
        met = self._tick.asks.list_met(place, place.capacity)
        if runs and met:
            found = self._lines.find(met, lambda lot: self._find_victims(lot, place, runs))
            if found is not None:
                lot, victims = found
                _carry_out(self._tick, lot, place, victims, self._level)
        return True

    def _is_out(self, lot: Lot) -> bool:
        if lot.account is None or self._least is None:
            return True
        return self._left[lot.account.id] <= self._least or self._tick.limits.is_fanned_out(lot)

    def _find_victims(self, lot: Lot, place: Place, runs: list[Run]) -> list[Run] | None:
        demand = lot.demand
        if lot.account is None or place.slot.id in demand.declined:
            return None
        if not all(has_labels(place.labels, need.component.labels) for need in demand.needs):
            return None
        if self._tick.limits.refuses(lot.account, [place] * len(demand.needs)):
            return None
        wanted = [need.given[place.slot.pool] for need in demand.needs]
        given, at_once = self._tick.given_on(place), not demand.settings.preemption_grace
        victims = choose_victims(place, runs, given, wanted, at_once=at_once)
        if victims is None or sum_costs(victims) >= self._left[lot.account.id]:
            return None
        return victims


def _carry_out(tick: Round, lot: Lot, place: Place, victims: list[Run], level: int) -> None:
    """Move the cost, and tell; with a grace the newcomer claims the place, without one it has it at once."""
    draft, grace = tick.draft, lot.demand.settings.preemption_grace
    reservation, cost = tick.serve(lot), sum_costs(victims)
    tick.preempted.add(place)
    tick.limits.note(lot, [place] * len(lot.demand.needs))
    for victim in victims:
        if lot.account is not None:
            draft.balances.move(victim.cost, lot.account, victim.account)
    first, *others = make_leases(draft, lot.demand, [place] * len(lot.demand.needs), level)
    leases = (msgspec.structs.replace(first, cost=cost), *others)
    decision = Preempt(
        reservation=reservation.id,
        slot=place.slot.id,
        victims=tuple(victim.reservation.id for victim in victims),
        level=level,
        leases=name_placements(leases),
        revoke_by=draft.now + grace if grace else None,
    )
    draft.decide(decision)
    if grace:
        for victim in victims:
            _revoke(tick, victim)
        claims = tuple(msgspec.structs.replace(lease, state="claimed") for lease in leases)
        tick.hold(reservation, claims)
        names = ", ".join(decision.victims)
        told = f"takes the place of {names} on {place.slot.id}, at the end of the grace at the latest"
        draft.wait(reservation.id, "no_capacity", told)
    else:
        for victim in victims:
            tick.end(victim)
        tick.hold(reservation, leases)
        draft.assign(reservation, name_placements(leases), level)


def _revoke(tick: Round, victim: Run) -> None:
    """It keeps its leases until the grace ends, and uses nothing up any more."""
    leases = tuple(msgspec.structs.replace(each, state="revoking", charged_at=None) for each in victim.leases)
    tick.draft.returning[victim.reservation.id] = victim.reservation
    tick.hold(victim.reservation, leases)
