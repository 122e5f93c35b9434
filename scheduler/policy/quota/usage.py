"""The use of running leases by each quota account since its last charge, kept between cycles.

The use of a lease is a linear function of time. Leases of one account and level that began at the same time with the
same weight use equal amounts, so one number stands for all of them. A cycle updates these numbers by the slots that
changed, and sums them exactly: the result is what `fsum` over all leases gives, to the last bit.
"""

from fractions import Fraction
from typing import TypeVar, cast

from scheduler.model.accounts import FREE, NOTHING, PAID, Account, Levels, find_account
from scheduler.model.view import View
from scheduler.policy.plan_cache import PlanCache, list_touched
from scheduler.policy.quota.accounting import charge

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
                self._find_tally(account).count(part, 1)
        if parts:
            self._parts[slot] = parts

    def _find_tally(self, account: Account) -> "_Tally":
        return self._tallies.get(account.id) or self._tallies.setdefault(account.id, _Tally(account.charged_at))

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
