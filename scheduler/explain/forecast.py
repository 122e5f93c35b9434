"""What an account has now, and when it can pay again by itself: by the sums of the charge. Source: qscheduler."""

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
    """An account charged up to now, and what its leases use up a second at each level."""

    account: Account
    use: Levels
    level: int
    """The best level that it can pay for; 5 = none."""


def forecast(view: View, account: Account, now: float) -> Forecast:
    """The account as the next tick would find it, if that came now."""
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
    """(seconds, level) after which it has something again at a level better than those that it can pay for, the
    soonest first, if what runs runs on. It has nothing before: a balance of 0 pays for nothing.
    """
    times = [(_seconds_until_paid(found, level), level) for level in PAID if level < found.level]
    yield from sorted((seconds, level) for seconds, level in times if seconds is not None)


def _seconds_until_paid(found: Forecast, level: int) -> float | None:
    """None where it never comes: it earns nothing there, nothing that is kept, or less than what runs uses up."""
    account = found.account
    gain = account.charge_rate[level] - found.use[level]
    if account.charge_rate[level] * account.max_charge_seconds <= 0 or gain <= 0:
        return None
    # A millisecond's worth of it is more than nothing.
    return -account.balance[level] / gain + _A_MOMENT


def seconds_left(found: Forecast) -> float | None:
    """How long what it has at its best level lasts if what runs runs on; None where it does not run down."""
    if found.level == FREE:
        return None
    loss = found.use[found.level] - found.account.charge_rate[found.level]
    return found.account.balance[found.level] / loss if loss > 0 else None


def describe_account(found: Forecast) -> str:
    """The account in a sentence: what it has left, how long that lasts, and when it can pay again."""
    account = found.account
    if found.level == FREE:
        told = f"account {account.id} has nothing left at any level"
    else:
        told = f"account {account.id} has {account.balance[found.level]:.6g} of level {found.level} left"
        if (seconds := seconds_left(found)) is not None:
            told += f", which what it runs uses up in {seconds:.3g} s"
    again = [f"at level {level} in {ceil(seconds)} s" for seconds, level in list_recoveries(found)]
    if found.level == 0:
        return told
    if not again:
        return f"{told}; it earns nothing that it could pay with" + (" at a better level" if found.level < FREE else "")
    return f"{told}; it can pay again {' and '.join(again)}"
