"""Whether a cycle can go on under `queue: quota`: the order of the queue and the reasons to wait have to stay."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from scheduler.model.accounts import Account, level_of
from scheduler.model.reservations import Reservation, Shape
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.queueing.order import rank_by_level


class PlacementByQuota:
    """The levels of the accounts in the cycle that was kept."""

    def __init__(self, cycle: CycleState) -> None:
        self._levels = _find_levels(cycle)

    def find_rank(self, cycle: CycleState) -> Callable[[Reservation], float] | None:
        """Return the rank of reservations in the queue; None if the order or the reasons to wait may be others.

        That is so if an account comes to another level, or may block reservations by a rule of its own.
        """
        accounts, is_common = cycle.balances.accounts, not cycle.rules.scheduler.system
        is_plain = is_common and cycle.balances.are_by_name and not cycle.view.special
        if not is_plain or any(map(_may_block, accounts.values())) or _find_levels(cycle) != self._levels:
            return None
        return rank_by_level(cycle)


def rank_by_group(
    rank: Callable[[Reservation], Any], rows: Sequence[Reservation], shapes: Sequence[Shape]
) -> Iterator[Any]:
    """Return the rank of each row, with one call for each account name and shape: these two determine it.

    `shapes`: the shape of each row.
    """
    marks = list(zip([row.request.account for row in rows], shapes, strict=True))
    rank_of = {mark: rank(row) for mark, row in dict(zip(marks, rows, strict=True)).items()}
    return map(rank_of.__getitem__, marks)


def _find_levels(cycle: CycleState) -> dict[str, int]:
    return {name: level_of(account.balance) for name, account in cycle.balances.accounts.items()}


def _may_block(account: Account) -> bool:
    return account.disable_free_tasks or bool(account.per_label_task_limits)
