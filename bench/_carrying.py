"""What a plan decided, carried out on the view alone: as a tick, a cloud that is quick and holders that come and go."""

from collections.abc import Iterator

from msgspec.structs import replace

from bench._fleets import Fleet
from scheduler.model.decisions import Assign, Cores, Grant, Launch, Plan
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import Row, View
from scheduler.policy.plan import plan

MOST_TICKS = 10
"""A fleet that has not come to rest by then never will."""


def settle(view: View, fleet: Fleet) -> None:
    """Tick until nothing is left to decide: what is launched is ready for the next tick."""
    for _ in range(MOST_TICKS):
        outcome = plan(view, fleet.rules, fleet.now)
        if not outcome.decisions:
            return
        carry_out(view, fleet, outcome)
    raise AssertionError("the fleet does not come to rest")


def carry_out(view: View, fleet: Fleet, outcome: Plan) -> None:
    """Every assignment and limit is written, every launch is ready at once."""
    for decision in outcome.decisions:
        match decision:
            case Assign():
                view.apply(_lease(view.reservations[decision.reservation], decision, fleet.now))
            case Grant():
                view.apply(_grant(view.reservations[decision.reservation], decision, fleet.now))
            case Launch():
                view.apply(_launch(view.slots[decision.slot], decision, fleet))
            case Cores():
                view.apply(_limit(view.reservations[decision.reservation], decision))
            case _:
                raise AssertionError(f"no fleet of this bench has anything like {decision}")


def _lease(reservation: Reservation, decision: Assign, now: float) -> Reservation:
    leases = tuple(
        Lease(
            component=each.component,
            slot=each.slot,
            epoch=each.epoch,
            token=1,
            resources=each.resources,
            assigned_at=now,
        )
        for each in decision.leases
    )
    return replace(reservation, version=reservation.version + 1, phase="leased", leased_at=now, leases=leases)


def _limit(reservation: Reservation, decision: Cores) -> Reservation:
    leases = tuple(
        replace(lease, cores=decision.cpus) if lease.component == decision.component else lease
        for lease in reservation.leases
    )
    return replace(reservation, version=reservation.version + 1, leases=leases)


def _grant(reservation: Reservation, decision: Grant, now: float) -> Reservation:
    lease = Lease(
        component=decision.component,
        slot=decision.slot,
        epoch=decision.epoch,
        token=1,
        kind="elastic",
        resources=decision.resources,
        assigned_at=now,
    )
    return replace(reservation, version=reservation.version + 1, leases=(*reservation.leases, lease))


def _launch(slot: Slot, decision: Launch, fleet: Fleet) -> Slot:
    offering = fleet.rules.pools[slot.pool].offering_by_key[decision.offering or ""]
    return replace(
        slot,
        version=slot.version + 1,
        state="ready",
        epoch=slot.epoch + 1,
        since=fleet.now,
        offering=decision.offering,
        market=offering.market,
        price=offering.price,
        resources=offering.resources,
    )


def list_churn(view: View, share: float, now: float) -> Iterator[Row]:
    """Of those who hold and of those who wait this share ends, spread over all, and as many come anew."""
    last = max(each.sequence for each in view.reservations.values())
    for phase in ("leased", "pending"):
        rows = list(view.by_phase[phase].values())
        for row in rows[:: round(1 / share)]:
            last += 1
            yield replace(row, version=row.version + 1, phase="released", leases=())
            yield Reservation(id=f"r{last}", sequence=last, request=row.request, created_at=now)
