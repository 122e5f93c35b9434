"""What a plan decided, carried out on the view alone: as a tick, a cloud that is quick and holders that come and go."""

from collections.abc import Iterator

from msgspec.structs import replace

from scheduler.model.accounts import FREE, Account
from scheduler.model.decisions import Assign, Cores, Grant, Launch, Placement, Plan, Preempt
from scheduler.model.reservations import ComponentKind, Lease, Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.view import Row, View
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from scheduler.policy.quota.accounting import charge, sum_running

MOST_TICKS = 10
"""A fleet that has not come to rest by then never will."""


def settle(view: View, rules: Rules, now: float, cache: PlanCache) -> None:
    """Tick until nothing is left to decide: what is launched is ready for the next tick."""
    for _ in range(MOST_TICKS):
        outcome = plan(view, rules, now, cache)
        if not outcome.decisions:
            return
        carry_out(view, rules, outcome, now)
    raise AssertionError("the fleet does not come to rest")


def carry_out(view: View, rules: Rules, outcome: Plan, now: float) -> None:
    """What a commit would write, charges first. What is launched is ready, and who is leased confirms, at once."""
    for name in outcome.charged:
        account = view.accounts[name]
        view.apply(replace(charge_account(view, account, now), version=account.version + 1))
    for decision in outcome.decisions:
        match decision:
            case Preempt():
                for victim in decision.victims:
                    view.apply(_return_to_queue(view.reservations[victim]))
            case Assign():
                view.apply(_lease(view.reservations[decision.reservation], decision, now))
            case Grant():
                view.apply(_grant(view.reservations[decision.reservation], decision, now))
            case Launch():
                view.apply(_launch(view.slots[decision.slot], decision, rules, now))
            case Cores():
                view.apply(_limit(view.reservations[decision.reservation], decision))
            case _:
                raise AssertionError(f"no fleet of the benches has anything like {decision}")


def charge_account(view: View, account: Account, now: float) -> Account:
    """The account once it has earned, and paid for what runs, up to now."""
    own = (row for row in view.by_phase["leased"].values() if row.request.account == account.id)
    return charge(account, sum_running(account, (lease for row in own for lease in row.leases), now), now)


def _return_to_queue(victim: Reservation) -> Reservation:
    return replace(victim, version=victim.version + 1, phase="pending", leases=())


def _lease(reservation: Reservation, decision: Assign, now: float) -> Reservation:
    leases = tuple(_make_lease(each, "essential", decision.level, now) for each in decision.leases)
    return replace(reservation, version=reservation.version + 1, phase="leased", leased_at=now, leases=leases)


def _grant(reservation: Reservation, decision: Grant, now: float) -> Reservation:
    lease = _make_lease(decision, "elastic", None, now)
    return replace(reservation, version=reservation.version + 1, leases=(*reservation.leases, lease))


def _make_lease(given: Placement | Grant, kind: ComponentKind, level: int | None, now: float) -> Lease:
    return Lease(
        component=given.component,
        kind=kind,
        slot=given.slot,
        epoch=given.epoch,
        token=1,
        resources=given.resources,
        level=FREE if level is None else level,
        charged_at=None if level is None else now,
        assigned_at=now,
        confirmed_at=now,
    )


def _launch(slot: Slot, decision: Launch, rules: Rules, now: float) -> Slot:
    offering = rules.pools[slot.pool].offering_by_key[decision.offering or ""]
    return replace(
        slot,
        version=slot.version + 1,
        state="ready",
        epoch=slot.epoch + 1,
        since=now,
        offering=decision.offering,
        market=offering.market,
        price=offering.price,
        resources=offering.resources,
    )


def _limit(reservation: Reservation, decision: Cores) -> Reservation:
    leases = tuple(
        replace(lease, cores=decision.cpus) if lease.component == decision.component else lease
        for lease in reservation.leases
    )
    return replace(reservation, version=reservation.version + 1, leases=leases)


def list_churn(view: View, share: float, now: float) -> Iterator[Row]:
    """Of those who hold and of those who wait this share ends, spread over all, and as many come anew."""
    last = max(each.sequence for each in view.reservations.values())
    for phase in ("leased", "pending"):
        rows = list(view.by_phase[phase].values())
        for row in rows[:: round(1 / share)]:
            last += 1
            yield replace(row, version=row.version + 1, phase="released", leases=())
            yield Reservation(id=f"r{last}", sequence=last, request=row.request, created_at=now)
