"""What leases cost and accounts pay.

Source: qscheduler's charge. The tick charges accounts by these sums. A request that starts or ends a lease between two
ticks records by them what the lease has used. A lease's `cost` is what it has used (with what it inherited) up to its
`charged_at`; from there on it runs at its level with its `weight` (1 = one worker). A lease whose `charged_at` is None
runs up nothing.
"""

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Final, assert_never

import msgspec

from scheduler.model.accounts import NOTHING, PAID, Account, Levels, add, at_level, subtract
from scheduler.model.reservations import Lease, cost_until
from scheduler.model.rules import Pool, SchedulerKeys
from scheduler.model.slots import Slot
from scheduler.policy.capacity.slot_info import capacity_of

OVERLAP_SECONDS: Final = 35.0
"""Longer than any transaction.

If the last charge is later than now by more than this, the clock went back; if by less, two transactions may have
written at the same time.
"""


def settle(lease: Lease, now: float) -> Lease:
    """Return the lease with its cost, by which quota accounts pay, counted up to `now`."""
    if lease.charged_at is None or now <= lease.charged_at:
        return lease
    return msgspec.structs.replace(lease, cost=cost_until(lease, now), charged_at=now)


def stop(lease: Lease, now: float) -> Lease:
    """Return the lease with its cost counted up to `now`; after that the lease costs its quota account nothing."""
    return msgspec.structs.replace(settle(lease, now), charged_at=None)


def used_since_charge(account: Account, lease: Lease, now: float) -> Levels:
    """Return what this lease has cost its quota account, by level, since the account was last charged."""
    if lease.charged_at is None:
        return NOTHING
    return at_level(lease.level, lease.weight * max(0.0, now - max(account.charged_at, lease.charged_at)))


def bill(account: Account, lease: Lease, follower: Lease | None, now: float) -> Account:
    """Return the account with the use of a lease since the last charge added to what is due.

    The lease ends (`follower` is None) or goes on as `follower`. What is due and what leases run up has the same sum as
    before. If a lease ends while a charge is written, it may have been charged for longer than it ran: the account gets
    the difference back.
    """
    used = used_since_charge(account, lease, now)
    if lease.charged_at is not None and lease.charged_at <= now < account.charged_at <= now + OVERLAP_SECONDS:
        used = at_level(lease.level, lease.weight * (now - account.charged_at))
    if follower is not None:
        used = subtract(used, used_since_charge(account, follower, now))
    return msgspec.structs.replace(account, due=add(account.due, used)) if any(used) else account


def sum_running(account: Account, leases: Iterable[Lease], now: float) -> Levels:
    """Return what these leases together have cost the quota account, by level, since the account was last charged."""
    total = NOTHING
    for lease in leases:
        total = add(total, used_since_charge(account, lease, now))
    return total


def charge(account: Account, running: Levels, now: float) -> Account:
    """Return the account after it paid what is due and what the leases `running` have used, and earned since then.

    At each level a balance below the cap grows up to the cap; a balance above the cap stays. If `now` is not after the
    last charge, nothing changes.
    """
    elapsed = now - account.charged_at
    if elapsed <= 0:
        return account
    paid = subtract(account.balance, add(account.due, running))
    balance = tuple(_earn(account, level, paid[level], elapsed) for level in PAID)
    return msgspec.structs.replace(account, balance=balance, due=NOTHING, charged_at=now)


def _earn(account: Account, level: int, paid: float, elapsed: float) -> float:
    rate = account.charge_rate[level]
    cap = rate * account.max_charge_seconds
    return min(cap, paid + elapsed * rate) if paid < cap else paid


_SECONDS_OF_AN_HOUR: Final = 3600.0


def weigh(given: Mapping[str, float], slot: Slot, pool: Pool, settings: SchedulerKeys) -> float:
    """Return what a lease with the amounts `given` of a slot costs per second, by the setting `charge_by`.

    `lease`: 1, one worker (qscheduler). `dominant_share`: the largest share of any resource of the slot, or of its
    `max_leases_per_slot` (dominant resource fairness). `price`: dollars, the price of its slot.
    """
    match settings.charge_by:
        case "lease":
            return 1.0
        case "dominant_share":
            capacity = capacity_of(slot, pool) or {}
            shares = [amount / capacity[name] for name, amount in given.items() if capacity.get(name, 0) > 0]
            if isfinite(pool.lease_limit):
                shares.append(1.0 / pool.lease_limit)
            return max(shares, default=1.0)
        case "price":
            return (slot.price or 0.0) / _SECONDS_OF_AN_HOUR
        case _:
            assert_never(settings.charge_by)
