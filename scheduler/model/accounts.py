"""Quota accounts: budgets of worker-seconds that teams earn and spend, one for each paid level. Source: qscheduler."""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias, TypeVar

import msgspec

Levels: TypeAlias = tuple[float, float, float, float, float]
"""Five amounts, one for each paid level, best level (0) first. Comparing two such tuples compares level 0 first."""

PAID: Final = range(5)
"""The paid levels of a quota account. Level 0 is the best."""
FREE: Final = 5
"""The free level. Leases at this level cost nothing, and reservations that run at a paid level may preempt them."""
NOTHING: Final[Levels] = (0.0, 0.0, 0.0, 0.0, 0.0)


class PublicAccount(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A quota account as clients read it. Times are seconds since the epoch, amounts are worker-seconds.

    Of two copies of a row, the one with the greater (`version`, `marked_at`) is newer. These two must stay the first
    fields, because Lua code reads them from the start of the JSON. A deleted account keeps its row, with `forgotten`
    set. If a new account gets the same name, reservations that were submitted before the deletion still have no
    account.
    """

    version: int = 0
    marked_at: float = 0.0
    id: str
    charge_rate: Levels = NOTHING
    """Worker-seconds that the account earns per second, for each paid level."""
    max_charge_seconds: float = 0.0
    """Upper limit of the balance: what the account earns in this number of seconds."""
    max_fanout: int = 0
    """Maximum number of paid leases of equal reservations of the account; 0 = no limit."""
    per_label_task_limits: dict[str, int] = {}
    """Label name -> maximum number of leases of the account on slots that have the same value of this label."""
    disable_free_tasks: bool = False
    """Whether the account's reservations wait, instead of running at the free level, while the account has no
    balance.
    """
    description: str = ""
    enforce_max_runtime: bool = False
    """Whether the leases of the account's reservations end at the `max_runtime` of their requests."""
    balance: Levels = NOTHING
    """Balance of the account at the time `charged_at`, for each paid level."""
    charged_at: float = 0.0
    """Time up to which earnings and payments are included in `balance`."""
    forgotten: bool = False
    forgotten_upto: int = 0
    """Sequence number of the last reservation that was submitted before the account was deleted. Reservations up to
    this number have no account.
    """


class Account(PublicAccount, frozen=True, kw_only=True, gc=False):
    """A quota account as the database and the view hold it."""

    due: Levels = NOTHING
    """Cost, since `charged_at`, of leases that have ended or changed their level. The next charge subtracts it from the
    balance.
    """


SAMPLE_SECONDS: Final = 60.0
"""Minimum interval between two stored balance samples of one account, in seconds."""


class BalanceSample(msgspec.Struct, frozen=True):
    """One entry in the history of an account's balances: the balance at each paid level at the time `at` (seconds since
    the epoch).
    """

    account: str
    at: float
    balance: Levels


def find_samples(before: Iterable[Account], after: Iterable[Account]) -> list[BalanceSample]:
    """Compare the accounts before and after a charge. Return a balance sample for each account whose `charged_at` moved
    into another minute.

    Only stored rows are compared. So an account has at most one sample a minute, even if another process becomes the
    leader.
    """
    minutes = {account.id: account.charged_at // SAMPLE_SECONDS for account in before}
    return [
        BalanceSample(account.id, account.charged_at, account.balance)
        for account in after
        if account.charged_at // SAMPLE_SECONDS > minutes.get(account.id, float("inf"))
    ]


AnyAccount = TypeVar("AnyAccount", bound=PublicAccount)


def find_account(accounts: Mapping[str, AnyAccount], name: str | None, sequence: int) -> AnyAccount | None:
    """Return the account `name` that pays for the reservation with this sequence number. Return None if `name` is None,
    if no such account exists, if the account is deleted (`forgotten`), or if an account with this name was deleted
    after the reservation was submitted.
    """
    found = accounts.get(name) if name is not None else None
    return None if found is None or found.forgotten or sequence <= found.forgotten_upto else found


def add(left: Levels, right: Levels) -> Levels:
    return (left[0] + right[0], left[1] + right[1], left[2] + right[2], left[3] + right[3], left[4] + right[4])


def subtract(left: Levels, right: Levels) -> Levels:
    """Return the difference of two amounts for each paid level. A result may be negative."""
    return (left[0] - right[0], left[1] - right[1], left[2] - right[2], left[3] - right[3], left[4] - right[4])


def share_of(amounts: Levels, part: int, whole: int) -> Levels:
    """Return `amounts` × `part` / `whole`."""
    return (
        amounts[0] * part / whole,
        amounts[1] * part / whole,
        amounts[2] * part / whole,
        amounts[3] * part / whole,
        amounts[4] * part / whole,
    )


def at_level(level: int, amount: float) -> Levels:
    """Return a tuple of amounts with `amount` at `level` and 0 at all other paid levels. If `level` is the free level,
    all amounts are 0.
    """
    values = [0.0] * len(PAID)
    if level in PAID:
        values[level] = amount
    return tuple(values)  # type: ignore[return-value]


def level_of(balance: Levels) -> int:
    """Return the best level with a balance above 0, or the free level if there is none. Worse levels may have a
    negative balance. Source: qscheduler.
    """
    return next((level for level in PAID if balance[level] > 0), FREE)
