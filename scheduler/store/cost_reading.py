"""Reads the cost ledger: the booked costs, and what machines have cost from their last booking until now."""

from collections import defaultdict
from typing import Protocol

from scheduler.model.costs import Cost, add_costs, begin_of_hour, measure_bill
from scheduler.model.slots import Slot
from scheduler.ports import PoolCost


class ReadsCosts(Protocol):
    """A base class of stores: it implements the methods of the port CostLedger that read costs, by one method,
    `load_costs`, which each store provides.
    """

    def load_costs(self, since: float) -> tuple[list[Cost], list[Slot], float]:
        """Return three things of one moment: the booked costs of the hours that begin at or after `since`, the slots
        with a meter (an interval of costs that is not booked yet), and cluster time.
        """

    def read_costs(self, since: float = 0.0) -> list[Cost]:
        """Return the costs of the hour that contains `since` and of all later hours. See CostLedger."""
        booked, slots, now = self.load_costs(begin_of_hour(since))
        for slot in slots:
            if slot.meter is not None:
                booked += measure_bill(slot.pool, slot.meter, now, since)
        return add_costs(booked)

    def sum_costs(self, since: float) -> list[PoolCost]:
        """Return, for each pool and account, the sum in dollars of the costs that `read_costs(since)` returns, without
        adjustments. See CostLedger.
        """
        found: dict[tuple[str, str], float] = defaultdict(float)
        for cost in self.read_costs(since):
            found[cost.pool, cost.account] += cost.spent
        return [PoolCost(*key, found[key]) for key in sorted(found)]
