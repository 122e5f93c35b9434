"""Budgets in dollars: what the machines of some pools and accounts may cost in an hour, a day and a month.

Days and months are those of UTC. The money spent so far is read from the cost ledger before a plan, and the functions
here receive it as `Spent`.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from math import inf
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from scheduler.model.pools import Pool
from scheduler.model.validation import Amount, Document, Fault, Name, expected, show, suggest

LONGEST_MONTH_HOURS: Final = 31 * 24
_CENT: Final = 0.01


class Budget(Document):
    """A budget in dollars for the machines of some pools and accounts. Days and months are those of UTC."""

    pools: tuple[Name, ...] = ()
    """Pools whose machines count; none = all pools."""
    accounts: tuple[Name, ...] = ()
    """Accounts for whose demand the machines were launched; none = all machines."""
    per_hour: Amount | None = None
    """Maximum sum of the prices per hour of the running machines; default: no limit."""
    per_day: Amount | None = None
    """Maximum cost of a day; default: no limit."""
    per_month: Amount | None = None
    """Maximum cost of a month; default: no limit."""
    action: Literal["warn", "stop", "drain"] = "stop"
    """`warn`: report an excess; `stop`: launch nothing that exceeds the budget; `drain`: also drain machines."""

    def check_fields(self) -> None:
        """Refuse a budget without a limit. Raises ExpectedError."""
        if self.per_hour is None and self.per_day is None and self.per_month is None:
            raise expected("an amount in dollars (per_hour, per_day or per_month)", key="per_hour", got=None)

    @property
    def is_limit(self) -> bool:
        """Whether the budget prevents launches, and does not only warn."""
        return self.action != "warn"

    @property
    def is_timed(self) -> bool:
        """Whether the budget limits a day or a month, so that the money spent so far matters, and not only the machines
        that run now.
        """
        return self.per_day is not None or self.per_month is not None

    def may_cover(self, pool: str) -> bool:
        """Return whether the budget may count machines of this pool. Its `accounts` are not tested."""
        return not self.pools or pool in self.pools

    def covers(self, pool: str, account: str) -> bool:
        """Return whether the budget counts a machine of `pool` that was launched for `account` ("": it was launched for
        no account).
        """
        return self.may_cover(pool) and (not self.accounts or account in self.accounts)


class Spent(NamedTuple):
    """What the machines of a budget have cost since the present day and the present month began, in dollars."""

    day: float = 0.0
    month: float = 0.0
    time_zero: float = 0.0
    """The time, in seconds since the epoch, at which cluster time is 0. Only in a simulation it is not 0."""


NOTHING_SPENT: Final = Spent()
NO_SPENDING: Final[Mapping[str, Spent]] = MappingProxyType({})
"""The empty table of spent amounts (name of a budget -> what its machines have cost): no budget has spent anything."""


def find_allowed(budget: Budget, spent: Spent) -> float:
    """Return the highest sum of prices per hour that the machines of a budget may have at present; infinity: no limit.

    The result is the smallest of three amounts: `per_hour`, what is left of `per_day`, and what is left of `per_month`.
    So the machines could run for one more hour within the budget. Example: 2 dollars are left of the day, so the prices
    per hour may have the sum 2, even if the day ends in 10 minutes. The result is never below 0.
    """
    limits = (
        (budget.per_hour, 0.0),
        (budget.per_day, spent.day),
        (budget.per_month, spent.month),
    )
    return min((max(0.0, most - used) for most, used in limits if most is not None), default=inf)


def find_next_period(budget: Budget, now: float, time_zero: float = 0.0) -> float:
    """Return the cluster time at which the next day begins if the budget has `per_day`, else the next month if it has
    `per_month`, else infinity. `time_zero`: as in `Spent`.
    """
    if budget.per_day is not None:
        return begin_of_day(now, time_zero) + timedelta(days=1).total_seconds()
    if budget.per_month is None:
        return inf
    return begin_of_month(begin_of_month(now, time_zero) + timedelta(days=32).total_seconds(), time_zero)


def begin_of_day(now: float, time_zero: float = 0.0) -> float:
    """Return the begin of the day in UTC that contains `now` (cluster time). `time_zero`: as in `Spent`."""
    day = timedelta(days=1).total_seconds()
    return (now + time_zero) // day * day - time_zero


def begin_of_month(now: float, time_zero: float = 0.0) -> float:
    """Return the begin of the month in UTC that contains `now` (cluster time). `time_zero`: as in `Spent`."""
    at = datetime.fromtimestamp(now + time_zero, UTC)
    return datetime(at.year, at.month, 1, tzinfo=UTC).timestamp() - time_zero


def list_budget_faults(budgets: Mapping[str, Budget], pools: Mapping[str, Pool]) -> Iterator[Fault]:
    """Yield the faults of the budgets: pools that are not configured, and amounts below the cost of `min_slots`."""
    for name, budget in budgets.items():
        for pool in budget.pools:
            if pool not in pools:
                yield Fault(f"budgets.{name}.pools", f"a configured pool{suggest(pool, pools)}", show(pool))
        if budget.is_limit and not budget.accounts:  # the minimum is launched for no account
            cost = sum(
                each.min_slots * min((offering.price for offering in each.offerings), default=0.0)
                for pool, each in pools.items()
                if budget.covers(pool, "")
            )
            limits: Iterable[tuple[str, float | None, int]] = (
                ("per_hour", budget.per_hour, 1),
                ("per_day", budget.per_day, 24),
                ("per_month", budget.per_month, LONGEST_MONTH_HOURS),
            )
            for key, most, hours in limits:
                if most is not None and most + _CENT / 2 < cost * hours:
                    what = f"at least {cost * hours:.2f}, the cost of the min_slots of its pools"
                    yield Fault(f"budgets.{name}.{key}", what, show(most))
