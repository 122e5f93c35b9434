"""The part of the store that holds the cost ledger: what the machines cost, by hour."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from scheduler.model.costs import Cost


class PoolCost(NamedTuple):
    """What the machines of one pool that were launched for one account have cost, in dollars. `account` "": for no
    account.
    """

    pool: str
    account: str
    dollars: float


class CostWriter(Protocol):
    """The methods of a transaction that write into the cost ledger."""

    def book(self, costs: Sequence[Cost]) -> None:
        """Add these costs to the ledger. Costs with the same hour, pool, offering, account and kind are added to one
        row. To avoid deadlocks, the rows are locked only at the end of the transaction, in the order of their keys,
        before events are numbered.
        """

    def take_unbooked(self, born: Mapping[str, float]) -> dict[str, float]:
        """Return for each of these machines the time from which its costs are not booked yet, and store that they are
        booked until now. The caller books the costs of this interval in the same transaction, so that no interval is
        booked twice.

        `born`: id of a machine -> the time at which its costs begin. This time is returned for a machine that was not
        stored before. Call this method after the rows of other kinds were locked. A machine's row stays locked until
        the end of the transaction.
        """


class CostLedger(Protocol):
    """The methods of a store that read the cost ledger."""

    def read_costs(self, since: float = 0.0) -> list[Cost]:
        """Return the costs of the hour that contains `since` and of all later hours. The result has one cost for each
        hour, pool, offering, account and kind, sorted by these five.

        A cost is the sum of two parts: what is booked, and what the machines of slots have cost from their last booking
        until now. Both parts are of one moment. Locks nothing.
        """

    def sum_costs(self, since: float) -> list[PoolCost]:
        """Return the sums of `read_costs(since)` in dollars for each pool and account, sorted. The kind `adjusted` does
        not count: budgets count the price of a machine from its launch, whatever EC2 bills. Locks nothing.
        """

    def prune_ledger(self, *, costs_before: float, machines_before: float, prices_before: float) -> int:
        """Delete old rows, and return their number: the costs and the price changes of hours that began before
        `costs_before` and `prices_before`, and the rows about machines without a slot whose costs are booked (entered
        in the cost ledger) until a time before `machines_before`.
        """
