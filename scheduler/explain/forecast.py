"""What an account has now, and when it can pay again without a change. Source: qscheduler."""

from collections.abc import Iterable, Iterator
from math import ceil
from typing import Final

import msgspec

from scheduler.model.accounts import FREE, NOTHING, PAID, Account, Levels, add, at_level, level_of
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.view import View
from scheduler.policy.quota.accounting import charge, sum_running

_A_MOMENT: Final = 0.001


class Forecast(msgspec.Struct, frozen=True):
    """An account charged up to now, and what its leases cost per second at each level."""

    account: Account
    use: Levels
    level: int
    """The best level that it can pay for; 5 = none."""


def forecast(view: View, account: Account, now: float) -> Forecast:
    """Return the account as a cycle at `now` would find it."""
    leases = list(_list_leases(view, account))
    charged = charge(account, sum_running(account, leases, now), now)
    use = NOTHING
    for lease in leases:
        if lease.charged_at is not None:
            use = add(use, at_level(lease.level, lease.weight))
    return Forecast(charged, use, level_of(charged.balance))


def _list_leases(view: View, account: Account) -> Iterable[Lease]:
    for leases in view.leases_on.values():
        for (owner, _), lease in leases.items():
            if _pays_for(view, account, view.reservations[owner]):
                yield lease


def _pays_for(view: View, account: Account, reservation: Reservation) -> bool:
    payer = view.account_of(reservation)
    return payer is not None and payer.id == account.id


def list_recoveries(found: Forecast) -> Iterator[tuple[float, int]]:
    """Yield (seconds, level): when it has something again at a level better than its present one, soonest first.

    Assumes that its running work goes on. A balance of 0 pays for nothing.
    """
    times = [(_seconds_until_paid(found, level), level) for level in PAID if level < found.level]
    yield from sorted((seconds, level) for seconds, level in times if seconds is not None)


def _seconds_until_paid(found: Forecast, level: int) -> float | None:
    """Return None if it never can: it earns nothing at the level, keeps nothing, or earns less than its work costs."""
    account = found.account
    gain = account.charge_rate[level] - found.use[level]
    if account.charge_rate[level] * account.max_charge_seconds <= 0 or gain <= 0:
        return None
    # The balance has to be above 0, not at 0.
    return -account.balance[level] / gain + _A_MOMENT


def seconds_left(found: Forecast) -> float | None:
    """Return for how many seconds its best level lasts if its work goes on; None if the balance does not fall."""
    if found.level == FREE:
        return None
    loss = found.use[found.level] - found.account.charge_rate[found.level]
    return found.account.balance[found.level] / loss if loss > 0 else None


def describe_account(found: Forecast) -> str:
    """Return a sentence on the account: what it has left, how long that lasts, and when it can pay again."""
    account = found.account
    if found.level == FREE:
        text = f"account {account.id} has nothing left at any level"
    else:
        text = f"account {account.id} has {account.balance[found.level]:.6g} of level {found.level} left"
        if (seconds := seconds_left(found)) is not None:
            text += f", which what it runs uses up in {seconds:.3g} s"
    again = [f"at level {level} in {ceil(seconds)} s" for seconds, level in list_recoveries(found)]
    if found.level == 0:
        return text
    if not again:
        return f"{text}; it earns nothing that it could pay with" + (" at a better level" if found.level < FREE else "")
    return f"{text}; it can pay again {' and '.join(again)}"
