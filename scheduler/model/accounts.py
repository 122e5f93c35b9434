"""Quota accounts: budgets of worker-seconds that teams earn and spend, one for each paid level. Source: qscheduler."""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias, TypeVar

import msgspec

Levels: TypeAlias = tuple[float, float, float, float, float]
"""A number for each paid level, best first. Two of them compare lexicographically from level 0."""

PAID: Final = range(5)
"""The paid levels, best first."""
FREE: Final = 5
"""The free level: nothing is paid there, and any paid work may take its place."""
NOTHING: Final[Levels] = (0.0, 0.0, 0.0, 0.0, 0.0)


class PublicAccount(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An account as clients read it. Times are seconds since the epoch, amounts worker-seconds.

    `version` and `marked_at` order the copies of a row as they do for slots, and stay the first fields. An account that
    was forgotten keeps its row, so that earlier reservations for it stay without an account when it is created again.
    """

    version: int = 0
    marked_at: float = 0.0
    id: str
    charge_rate: Levels = NOTHING
    """What it earns a second at each level."""
    max_charge_seconds: float = 0.0
    """The most that it keeps: what it earns in this number of seconds."""
    max_fanout: int = 0
    """Paid leases of reservations that are alike, at most; 0 = no limit."""
    per_label_task_limits: dict[str, int] = {}
    """Label name -> leases at most on slots that share a value of it."""
    disable_free_tasks: bool = False
    """Whether reservations wait instead of running at the free level while the account has no balance."""
    description: str = ""
    balance: Levels = NOTHING
    """What it had at `charged_at`, by paid level."""
    charged_at: float = 0.0
    """Up to this instant `balance` has earned and paid."""
    forgotten: bool = False
    forgotten_upto: int = 0
    """Reservations up to this one in the order of submission are accountless: the account was forgotten after them."""


class Account(PublicAccount, frozen=True, kw_only=True, gc=False):
    """An account as stored and viewed."""

    due: Levels = NOTHING
    """Used since `charged_at` by leases that have ended or changed their level: paid with the next charge."""


SAMPLE_SECONDS: Final = 60.0
"""Balances over time: one a minute and account, at most."""


class BalanceSample(msgspec.Struct, frozen=True):
    """The balances of an account at that time (seconds since the epoch), for the history."""

    account: str
    at: float
    balance: Levels


def find_samples(before: Iterable[Account], after: Iterable[Account]) -> list[BalanceSample]:
    """What is kept of a charge for the history: the balances of the accounts that it took into another minute.

    So an account has at most one sample a minute under any leader, without a memory of the last one.
    """
    minutes = {account.id: account.charged_at // SAMPLE_SECONDS for account in before}
    return [
        BalanceSample(account.id, account.charged_at, account.balance)
        for account in after
        if account.charged_at // SAMPLE_SECONDS > minutes.get(account.id, float("inf"))
    ]


AnyAccount = TypeVar("AnyAccount", bound=PublicAccount)


def find_account(accounts: Mapping[str, AnyAccount], name: str | None, sequence: int) -> AnyAccount | None:
    """Return the account of a reservation (its account's name, its place in the order of submission), if there is
    one.
    """
    found = accounts.get(name) if name is not None else None
    return None if found is None or found.forgotten or sequence <= found.forgotten_upto else found


def add(left: Levels, right: Levels) -> Levels:
    """Level by level."""
    return (left[0] + right[0], left[1] + right[1], left[2] + right[2], left[3] + right[3], left[4] + right[4])


def subtract(left: Levels, right: Levels) -> Levels:
    """Level by level; below 0 too."""
    return (left[0] - right[0], left[1] - right[1], left[2] - right[2], left[3] - right[3], left[4] - right[4])


def at_level(level: int, amount: float) -> Levels:
    """So much at one level, nothing at the others; the free level counts nothing."""
    values = [0.0] * len(PAID)
    if level in PAID:
        values[level] = amount
    return tuple(values)  # type: ignore[return-value]


def level_of(balance: Levels) -> int:
    """The best level with a balance above 0, else the free one. qscheduler: deeper levels may be negative."""
    return next((level for level in PAID if balance[level] > 0), FREE)
