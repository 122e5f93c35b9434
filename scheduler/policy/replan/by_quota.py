"""Whether a kept cycle can go on under `queue: quota`: the order of the queue and the waiting reasons must
not change.
"""

from collections.abc import Callable

from scheduler.model.accounts import Account, level_of
from scheduler.model.pending_queue import GroupKey
from scheduler.model.reservations import Reservation, Shape
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.queueing.order import rank_by_level


class PlacementByQuota:
    """The levels of the accounts in the kept cycle, and the ranks of reservations, which hold while these levels do not
    change.
    """

    def __init__(self, cycle: CycleState) -> None:
        self._levels = _find_levels(cycle)
        self._rank = rank_by_level(cycle)
        self._ranks: dict[GroupKey, float] = {}
        """(account name, shape) -> rank, for the ranks found so far. Account name and shape determine the rank."""
        self._shared: dict[float, float] = {}
        """The different ranks. Speed: positions are compared faster if equal ranks are the same object."""

    def find_rank(self, cycle: CycleState) -> Callable[[Reservation], float] | None:
        """Return the rank function of the queue; None if the order or the waiting reasons may have changed.

        They may have if an account reaches another level, or if an account has limits that may block reservations.
        """
        accounts, is_common = cycle.balances.accounts, not cycle.rules.scheduler.system
        is_plain = is_common and cycle.balances.are_by_name and not cycle.view.special
        if not is_plain or any(map(_may_block, accounts.values())) or _find_levels(cycle) != self._levels:
            return None
        return self._rank

    def find_rank_of(self, row: Reservation, shape: Shape) -> float:
        """Return the rank of a row, which has this shape."""
        mark = (row.request.account, shape)
        rank = self._ranks.get(mark)
        if rank is None:
            rank = self._rank(row)
            rank = self._ranks[mark] = self._shared.setdefault(rank, rank)
        return rank


def _find_levels(cycle: CycleState) -> dict[str, tuple[int, bool]]:
    """Return the level of each account, and whether it was deleted. With them the rank of a reservation follows from
    its account name and shape.
    """
    accounts = cycle.balances.accounts.items()
    return {name: (level_of(account.balance), account.forgotten) for name, account in accounts}


def _may_block(account: Account) -> bool:
    return account.disable_free_tasks or bool(account.per_label_task_limits)
