"""Tests whether a kept cycle can go on under `queue: quota`: only while the order of the queue and the waiting reasons
cannot have changed.
"""

from collections.abc import Callable

from scheduler.model.accounts import Account, level_of
from scheduler.model.pending_queue import GroupKey
from scheduler.model.reservations import Reservation, Shape
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.queueing.order import rank_by_level


class PlacementByQuota:
    """Finds the ranks of reservations under `queue: quota` for a kept cycle, and tests whether the ranks may have
    changed. The ranks are valid while the levels of the accounts are the same as in the kept cycle.
    """

    def __init__(self, cycle: CycleState) -> None:
        self._levels = _find_levels(cycle)
        self._rank = rank_by_level(cycle)
        self._ranks: dict[GroupKey, float] = {}
        """(account name, shape) -> the rank of reservations with both. It contains the ranks that were computed
        so far.
        """
        self._shared: dict[float, float] = {}
        """Rank -> the one object that stands for this rank. Speed: positions are compared faster if equal ranks are the
        same object.
        """

    def find_rank(self, cycle: CycleState) -> Callable[[Reservation], float] | None:
        """Return the rank function of the queue; None if the order of the queue or the waiting reasons may have
        changed.

        They may have changed if an account has reached another level, or if an account has limits that may block
        reservations.
        """
        accounts, is_common = cycle.balances.accounts, not cycle.rules.scheduler.system
        is_plain = is_common and cycle.balances.are_by_name and not cycle.view.special
        if not is_plain or any(map(_may_block, accounts.values())) or _find_levels(cycle) != self._levels:
            return None
        return self._rank

    def find_rank_of(self, row: Reservation, shape: Shape) -> float:
        """Return the rank of the reservation `row`. `shape`: its shape."""
        mark = (row.request.account, shape)
        rank = self._ranks.get(mark)
        if rank is None:
            rank = self._rank(row)
            rank = self._ranks[mark] = self._shared.setdefault(rank, rank)
        return rank


def _find_levels(cycle: CycleState) -> dict[str, tuple[int, bool]]:
    """Return a table (account id -> (its best level with a balance, whether it was deleted)). While the table is the
    same, account name and shape determine the rank of a reservation.
    """
    accounts = cycle.balances.accounts.items()
    return {name: (level_of(account.balance), account.forgotten) for name, account in accounts}


def _may_block(account: Account) -> bool:
    return account.disable_free_tasks or bool(account.per_label_task_limits)
