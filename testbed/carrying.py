"""Carries out plans on a view without a database: as a tick would, with a cloud without delays and
simulated holders.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from scheduler.model.accounts import FREE, Account
from scheduler.model.decisions import Assign, Claim, Cores, Grant, Launch, Placement, Plan, PlanStart, Preempt, Revoke
from scheduler.model.reservations import ComponentKind, Lease, LeaseState, Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.view import Row, View
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from scheduler.policy.quota.accounting import charge, sum_running

MOST_TICKS = 10
"""Ticks after which a fleet without an empty plan is assumed never to reach one."""


def settle(view: View, rules: Rules, now: float, cache: PlanCache) -> None:
    """Tick until the plan is empty. Launched slots are ready for the next tick."""
    for _ in range(MOST_TICKS):
        outcome = plan(view, rules, now, cache)
        if not outcome.decisions:
            return
        carry_out(view, rules, outcome, now)
    raise AssertionError(f"the plan is still not empty after {MOST_TICKS} ticks")


def carry_out(view: View, rules: Rules, outcome: Plan, now: float) -> None:
    """Apply a plan to the view as a commit would, charges first. Launched slots are ready and leases
    confirmed at once. Holders surrender revoked elastic instances at once, before their deadline.
    """
    for name in outcome.charged:
        account = view.accounts[name]
        view.apply(replace(charge_account(view, account, now), version=account.version + 1))
    for decision in outcome.decisions:
        match decision:
            case Preempt():
                for victim in decision.victims:
                    view.apply(_return_to_queue(view.reservations[victim]))
            case Launch():
                view.apply(_launch(view.slots[decision.slot], decision, rules, now))
            case Assign() | Claim() | Grant() | Revoke() | Cores() | PlanStart():
                view.apply(_change(view.reservations[decision.reservation], decision, now))
            case _:
                raise AssertionError(f"the fleets cause no decision such as {decision}")


def _change(
    reservation: Reservation, decision: Assign | Claim | Grant | Revoke | Cores | PlanStart, now: float
) -> Reservation:
    """Return a reservation after a decision about its leases or its planned start."""
    match decision:
        case Assign():
            return _lease(reservation, decision, now)
        case Claim():
            return _claim(reservation, decision, now)
        case Grant():
            return _grant(reservation, decision, now)
        case Revoke():
            return _surrender(reservation, decision)
        case Cores():
            return _limit(reservation, decision)
        case PlanStart():
            return replace(reservation, version=reservation.version + 1, planned_start=decision.at)


def charge_account(view: View, account: Account, now: float) -> Account:
    """Return the account after it has earned, and paid for its running leases, up to now."""
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


def _surrender(reservation: Reservation, decision: Revoke) -> Reservation:
    leases = tuple(lease for lease in reservation.leases if lease.component != decision.component)
    return replace(reservation, version=reservation.version + 1, leases=leases)


def _claim(reservation: Reservation, decision: Claim, now: float) -> Reservation:
    leases = tuple(_make_lease(each, "essential", decision.level, now, "claimed") for each in decision.leases)
    return replace(reservation, version=reservation.version + 1, leases=leases)


def _make_lease(
    given: Placement | Grant, kind: ComponentKind, level: int | None, now: float, state: LeaseState = "held"
) -> Lease:
    return Lease(
        component=given.component,
        kind=kind,
        state=state,
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
    """End this share of the leased and of the pending reservations, evenly spread, and submit as many new ones."""
    last = max(each.sequence for each in view.reservations.values())
    for phase in ("leased", "pending"):
        rows = list(view.by_phase[phase].values())
        for row in rows[:: round(1 / share)]:
            last += 1
            yield replace(row, version=row.version + 1, phase="released", leases=())
            yield Reservation(id=f"r{last}", sequence=last, request=row.request, created_at=now)
