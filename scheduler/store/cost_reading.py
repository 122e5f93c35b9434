"""Reads the cost ledger: what is booked, and what the open intervals have cost until now."""

from collections import defaultdict
from typing import Protocol

from scheduler.model.costs import Cost, add_costs, begin_of_hour, measure
from scheduler.model.slots import Slot
from scheduler.ports import PoolCost


class ReadsCosts(Protocol):
    """The methods of a store that read the cost ledger, made from one read of its rows."""

    def load_costs(self, since: float) -> tuple[list[Cost], list[Slot], float]:
        """Return the booked costs of the hours that begin at or after `since`, the slots with a meter, and the time.
        All are of one moment.
        """

    def read_costs(self, since: float = 0.0) -> list[Cost]:
        """Return the costs of the hour that contains `since` and of all later hours. See CostLedger."""
        booked, slots, now = self.load_costs(begin_of_hour(since))
        for slot in slots:
            if slot.meter is not None:
                booked += measure(slot.pool, slot.meter, now, since)
        return add_costs(booked)

    def sum_costs(self, since: float) -> list[PoolCost]:
        """Return the sums of the costs in dollars for each pool and account. See CostLedger."""
        found: dict[tuple[str, str], float] = defaultdict(float)
        for cost in self.read_costs(since):
            found[cost.pool, cost.account] += cost.dollars
        return [PoolCost(*key, found[key]) for key in sorted(found)]
