"""Builders of a view under the queue `quota`, and the decisions of a plan in words that fit in a table."""

from typing import Any

from scheduler.model.accounts import NOTHING, Account, Levels
from scheduler.model.decisions import Assign, Claim, Preempt, Relevel, Requeue
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.rules import Rules, read_rules
from scheduler.model.slots import Slot
from scheduler.model.view import Row, View
from scheduler.policy.plan import plan
from tests.builders import NOW, SYSTEM, a_lease, a_reservation, a_slot

Document = dict[str, Any]


def levels(*amounts: float) -> Levels:
    """Five numbers, padded with 0."""
    return (*amounts, *NOTHING)[:5]  # type: ignore[return-value]


def an_account(name: str = "A", *balance: float, rate: tuple[float, ...] = (), **changes: object) -> Account:
    """An account with this balance, which was charged just now."""
    fields: dict[str, Any] = {"charged_at": NOW, **changes}
    return Account(id=name, balance=levels(*balance), charge_rate=levels(*rate), **fields)


def a_host(number: int = 1, labels: dict[str, str] | None = None, **changes: Any) -> Slot:
    """A ready slot of the static pool `hosts`, without leases."""
    return a_slot(f"hosts-{number}", labels=labels or {}, launch_id=None, **changes)


def a_claim(lease: Lease, **changes: object) -> dict[str, Any]:
    """The fields of a pending reservation that has a claim on a slot."""
    fields: dict[str, Any] = {"component": lease.component, "token": 0, "state": "claimed", **changes}
    return {"leases": (a_lease(lease.slot, level=lease.level, cost=lease.cost, charged_at=lease.charged_at, **fields),)}


def waits(name: str, account: str | None = None, at: float = 0, **wishes: object) -> Reservation:
    """A pending reservation, submitted `-at` seconds ago; its number in the order is the id's."""
    return a_reservation(name, account=account, created_at=NOW + at, sequence=_number_of(name), **wishes)


def runs(
    name: str,
    slot: int | Lease,
    level: int = 5,
    account: str | None = None,
    cost: tuple[float, ...] = (),
    phase: str = "leased",
    **wishes: object,
) -> Reservation:
    """A reservation that runs on a slot of `hosts` at this level, with this cost up to now."""
    lease = slot
    if isinstance(slot, int):
        lease = a_lease(f"hosts-{slot}", level=level, cost=levels(*cost), charged_at=NOW, confirmed_at=NOW)
    own: dict[str, Any] = {"phase": phase, "leases": (lease,), "leased_at": NOW, "created_at": NOW - 1000, **wishes}
    return a_reservation(name, account=account, sequence=_number_of(name), **own)


def _number_of(name: str) -> int:
    return int("".join(filter(str.isdigit, name)) or 0)


def quota_rules(pool: Document | None = None, pools: Document | None = None, **scheduler: object) -> Rules:
    """One static pool that counts leases, one a slot; by default without a grace period."""
    keys = {"queue": "quota", "preemption_grace": 0, **scheduler}
    hosts = {"system": SYSTEM, "provider": "static", "lease_ttl": 0, **(pool or {})}
    return read_rules({"scheduler": keys, "pools": {"hosts": hosts, **(pools or {})}})


def decide(*rows: Row, rules: Rules | None = None, now: float = NOW) -> list[str]:
    """The decisions of a tick about reservations."""
    return describe(*rows, rules=rules, now=now)[0]


def describe(*rows: Row, rules: Rules | None = None, now: float = NOW) -> tuple[list[str], dict[str, str]]:
    """The decisions of a tick about reservations, and the code of each wait."""
    found = plan(View(rows), rules or quota_rules(), now)
    words = [word for decision in found.decisions if (word := _word(decision))]
    return words, {each.reservation: each.code for each in found.waiting}


def _word(decision: object) -> str:
    match decision:
        case Assign():
            slots = "+".join(lease.slot.removeprefix("hosts-") for lease in decision.leases)
            return f"{decision.reservation} on {slots} at {decision.level}"
        case Preempt():
            grace = "" if decision.revoke_by is None else f" by {decision.revoke_by - NOW:g}"
            taken = "+".join(decision.victims)
            return f"{decision.reservation} takes {decision.slot.removeprefix('hosts-')} of {taken}{grace}"
        case Claim():
            slots = "+".join(lease.slot.removeprefix("hosts-") for lease in decision.leases)
            return f"{decision.reservation} claims {slots} at {decision.level}"
        case Relevel():
            return f"{decision.reservation} from {decision.source} to {decision.to}"
        case Requeue():
            return f"{decision.reservation} again: {decision.reason}"
        case _:
            return ""
