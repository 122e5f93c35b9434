"""The cost of leases, and the payments of accounts.

The tick charges accounts with these functions. When a request starts or ends a lease between two ticks, it records the
cost of the lease with the same functions. A lease's `cost` is its cost until `charged_at`. If a preemption granted the
lease, `cost` includes the cost of the preempted lease. From `charged_at` on the lease costs its `weight` per second at
its level (weight 1: one worker). A lease whose `charged_at` is None costs nothing more. Source: the charge of
qscheduler.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from math import isfinite
from typing import Final, TypeVar, assert_never, cast

import msgspec

from scheduler.model.accounts import (
    FREE,
    NOTHING,
    PAID,
    Account,
    Levels,
    add,
    at_level,
    find_account,
    share_of,
    subtract,
)
from scheduler.model.pools import Pool
from scheduler.model.reservations import Lease, cost_until
from scheduler.model.rules import SchedulerKeys
from scheduler.model.slots import Slot
from scheduler.model.view import View
from scheduler.policy.capacity.fits import capacity_of
from scheduler.policy.plan_cache import PlanCache, list_touched

OVERLAP_SECONDS: Final = 35.0
"""A number of seconds that is greater than the duration of any transaction.

An account's last charge may be later than the `now` of the transaction that reads the account. If the charge is later
by at most this number, the transaction that made the charge may have overlapped with this one. If the charge is later
by more, the clock went back.
"""


def settle(lease: Lease, now: float) -> Lease:
    """Return the lease with its `cost` computed up to `now`, and with `charged_at` = `now`. Return it unchanged if it
    costs nothing any more, or if its `cost` reaches `now` or a later time already.
    """
    if lease.charged_at is None or now <= lease.charged_at:
        return lease
    return msgspec.structs.replace(lease, cost=cost_until(lease, now), charged_at=now)


def stop(lease: Lease, now: float) -> Lease:
    """Return the lease with its `cost` computed up to `now`. From now on the lease costs its account nothing."""
    return msgspec.structs.replace(settle(lease, now), charged_at=None)


def share_cost(leases: Iterable[Lease], count: int, now: float) -> Levels:
    """Return what a preemption pays for this number of elastic leases of a reservation that goes on: the cost of the
    reservation × `count` / the number of its leases. Leases that are being revoked do not count. `leases`: its leases.
    """
    held = [lease for lease in leases if lease.state != "revoking"]
    return share_of(sum_costs(held, now), count, len(held))


def sum_costs(leases: Iterable[Lease], now: float) -> Levels:
    """Return what these leases have cost up to `now`, as one amount for each paid level."""
    cost = NOTHING
    for lease in leases:
        cost = add(cost, settle(lease, now).cost)
    return cost


def take_share(leases: Sequence[Lease], ending: Collection[str], now: float) -> tuple[Lease, ...]:
    """Return the leases of a reservation after a preemption has paid its share (`share_cost`) for elastic ones that
    end. `ending`: the components of these.

    The share is taken off the cost of the reservation, and each lease that goes on has an equal part of the rest. A
    lease that ends has no cost and costs nothing more.
    """
    paid = share_cost(leases, len(ending), now)
    held = [lease for lease in leases if lease.state != "revoking"]
    rest, staying = subtract(sum_costs(held, now), paid), len(held) - len(ending)
    each, replace = share_of(rest, 1, staying) if staying else NOTHING, msgspec.structs.replace
    return tuple(
        replace(lease, cost=NOTHING, charged_at=None)
        if lease.component in ending
        else lease
        if lease.state == "revoking"
        else replace(settle(lease, now), cost=each)
        for lease in leases
    )


def used_since_charge(account: Account, lease: Lease, now: float) -> Levels:
    """Return what this lease has cost its quota account since the account was last charged, as one amount for each paid
    level.
    """
    if lease.charged_at is None:
        return NOTHING
    return at_level(lease.level, lease.weight * max(0.0, now - max(account.charged_at, lease.charged_at)))


def bill(account: Account, lease: Lease, follower: Lease | None, now: float) -> Account:
    """Return the account after its lease `lease` ended or changed. What the lease has cost since the account's last
    charge is added to the amount due (`due`), which the next charge subtracts from the balance.

    `follower`: the row of the same lease after the change, for example with another level; None: the lease ended. What
    `follower` costs for this time is subtracted from the amount due. So the sum of the amount due and of the costs of
    running leases stays the same. If the account was charged for a longer time than the lease ran, the difference is
    refunded.
    """
    used = used_since_charge(account, lease, now)
    if lease.charged_at is not None and lease.charged_at <= now < account.charged_at <= now + OVERLAP_SECONDS:
        used = at_level(lease.level, lease.weight * (now - account.charged_at))
    if follower is not None:
        used = subtract(used, used_since_charge(account, follower, now))
    return msgspec.structs.replace(account, due=add(account.due, used)) if any(used) else account


def sum_running(account: Account, leases: Iterable[Lease], now: float) -> Levels:
    """Return what these leases together have cost the quota account since it was last charged, as one amount for each
    paid level.
    """
    total = NOTHING
    for lease in leases:
        total = add(total, used_since_charge(account, lease, now))
    return total


def charge(account: Account, running: Levels, now: float) -> Account:
    """Return the account as it is after a charge. The account pays two amounts: (1) `due`, the cost since the last
    charge of leases that ended or changed; (2) `running`, the cost since then of leases that run. The account also
    earns for the time since the last charge.

    At each level a balance below the cap grows up to the cap; a balance above the cap does not grow. If `now` is not
    after the last charge, the account is returned unchanged.
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
    """Return what a lease with the amounts `given` on a slot costs per second. The unit depends on the setting
    `charge_by`.

    `lease`: 1, one worker (qscheduler). `dominant_share`: the lease's largest share of any resource of the slot, or of
    `max_leases_per_slot` (dominant resource fairness). `price`: the price of the slot, in dollars per second.
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


# The use of running leases by each quota account since its last charge, kept between cycles.
#
# The use of a lease is a linear function of time. Leases of one account and level that began at the same time with the
# same weight use equal amounts, so one number stands for all of them. A cycle updates these numbers by the slots that
# changed, and sums them exactly: the result is what `fsum` over all leases gives, to the last bit.


_Part = tuple[str, int, float, float]
"""What one lease uses: (account that pays, level, time from which the use counts, weight: use per second)."""


class RunningUse:
    """What the running leases of a view use, by account and level."""

    def __init__(self) -> None:
        self._view: View | None = None
        self._revision = 0
        self._payers: dict[str, tuple[bool, int]] = {}
        """Account id -> (`forgotten`, `forgotten_upto`). An account pays for no reservation if `forgotten` is true
        (deleted), and else only for reservations whose sequence number is above `forgotten_upto`.
        """
        self._parts: dict[str, list[_Part]] = {}
        """Slot id -> what the leases on the slot use at paid levels, one entry for each lease."""
        self._tallies: dict[str, _Tally] = {}
        """Account id -> the counts of its running leases: leases that use equal amounts are counted together. Accounts
        without running leases may be missing.
        """

    def follow(self, view: View) -> None:
        """Update the sums by the slots that changed in the view since the last call. All slots are read in three cases:
        the view is another one, accounts were created or deleted, or the time of an account's last charge moved back.
        """
        accounts = view.accounts
        payers = {name: (account.forgotten, account.forgotten_upto) for name, account in accounts.items()}
        is_known = view is self._view and payers == self._payers
        if not is_known or any(accounts[name].charged_at < tally.since for name, tally in self._tallies.items()):
            self._view, self._payers, self._parts, self._tallies = view, payers, {}, {}
            for slot in view.leases_on:
                self._add(view, slot)
        else:
            for slot in list_touched(view, self._revision):
                for part in self._parts.pop(slot, ()):
                    self._tallies[part[0]].count(part, -1)
                self._add(view, slot)
        self._revision = view.revision
        for name, tally in self._tallies.items():
            tally.advance(accounts[name].charged_at)

    def _add(self, view: View, slot: str) -> None:
        accounts, parts = view.accounts, list[_Part]()
        for (owner, _), lease in view.leases_on.get(slot, {}).items():
            if lease.charged_at is None or lease.level >= FREE:
                continue
            row = view.reservations[owner]
            account = find_account(accounts, row.request.account, row.sequence)
            if account is not None:
                parts.append(part := (account.id, lease.level, lease.charged_at, lease.weight))
                tally = self._tallies.get(account.id)
                if tally is None:
                    tally = self._tallies[account.id] = _Tally(account.charged_at)
                tally.count(part, 1)
        if parts:
            self._parts[slot] = parts

    def sum_used(self, account: str, now: float) -> Levels:
        """Return what the leases of an account have used from its last charge until `now`, as one amount for each paid
        level.
        """
        tally = self._tallies.get(account)
        return NOTHING if tally is None else tally.sum_used(now)


class _Tally:
    """Counts the running leases of one account. Leases that use equal amounts since the account's last charge are
    counted together, as one number.
    """

    def __init__(self, since: float) -> None:
        self.since = since
        """When the account was last charged (seconds since the epoch)."""
        self._settled: list[dict[float, int]] = [{} for _ in PAID]
        """For each paid level: weight -> the number of leases with this weight whose use up to `since` is charged."""
        self._young: dict[_Part, int] = {}
        """For leases whose use began after the account's last charge (`since`): `_Part` (account, level, begin of the
        use, weight) -> the number of leases for which these four values are equal.
        """

    def count(self, part: _Part, change: int) -> None:
        """Add `change` leases with the same use, `part`; a negative number removes leases."""
        _, level, start, weight = part
        if start > self.since:
            _change(self._young, part, change)
        else:
            _change(self._settled[level], weight, change)

    def advance(self, since: float) -> None:
        """Record that the account was charged up to the time `since`. This time must not be before its last charge."""
        self.since = since
        for part in [each for each in self._young if each[2] <= since]:
            self.count(part, self._young.pop(part))

    def sum_used(self, now: float) -> Levels:
        """Return the use of the leases from the last charge until `now`, as one amount for each paid level."""
        terms: list[list[tuple[int, float]]] = [[] for _ in PAID]
        if now > self.since:
            for level, settled in enumerate(self._settled):
                terms[level] += [(count, weight * (now - self.since)) for weight, count in settled.items()]
        for (_, level, start, weight), count in self._young.items():
            if now > start:
                terms[level].append((count, weight * (now - start)))
        return cast("Levels", tuple(map(_sum_exactly, terms)))


_Key = TypeVar("_Key")


def _change(counts: dict[_Key, int], key: _Key, change: int) -> None:
    counts[key] = counts.get(key, 0) + change
    if not counts[key]:
        del counts[key]


def _sum_exactly(terms: list[tuple[int, float]]) -> float:
    """Return the sum of number × amount over these pairs (number, amount). It is rounded only once, to the nearest
    float.
    """
    if len(terms) <= 1:  # speed: the product of an integer and a float is rounded once
        return sum((count * amount for count, amount in terms), 0.0)
    return float(sum(count * Fraction(amount) for count, amount in terms))


def charge_all(view: View, cache: PlanCache, now: float) -> dict[str, Account]:
    """Return all existing accounts by id, in the order of their ids. Each is charged up to `now` for its leases in the
    view.
    """
    use = cache.recall(RunningUse)
    use.follow(view)
    return {
        name: charge(account, use.sum_used(name, now), now)
        for name, account in sorted(view.accounts.items())
        if not account.forgotten
    }
