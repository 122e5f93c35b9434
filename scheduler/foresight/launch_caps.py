"""The limits on all launches together: `max_slots` of the scheduler, and budgets in dollars."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduler.model.budgets import NOTHING_SPENT, Budget, Spent, find_allowed
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import INACTIVE, UNPAID


@dataclass
class LaunchCaps:
    """What launches may take together. `left`: pool -> how many slots it may still get by its own `max_slots`."""

    left: Mapping[str, int]
    caps: list[float] = field(default_factory=list)
    """Slots, or dollars in an hour."""
    costs: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Pool -> what one of its slots takes of the caps, as (number of the cap, amount)."""
    unplayed: set[str] = field(default_factory=set)
    """Pools with a limit that plays do not know: it changes with the time, or depends on the account."""

    def add(self, most: float, costs: Mapping[str, float]) -> None:
        """Limit the sum of the costs of a slot by pool."""
        for pool, each in costs.items():
            self.costs.setdefault(pool, []).append((len(self.caps), each))
        self.caps.append(max(0.0, most))


def find_launch_caps(
    rules: Rules, spending: Mapping[str, Spent], slots: Iterable[Slot], left: Mapping[str, int]
) -> LaunchCaps:
    """Return what limits the launches of these pools. `spending`: what budgets for a day or a month have spent."""
    found, rows = LaunchCaps(left), list(slots)
    if rules.scheduler.max_slots:
        active = sum(each.state not in INACTIVE for each in rows)
        found.add(rules.scheduler.max_slots - active, dict.fromkeys(left, 1.0))
    for name, budget in rules.budgets.items():
        prices = {
            pool: {each.price for each in rules.pools[pool].offerings}
            for pool in left
            if budget.is_limit and budget.may_cover(pool)
        }
        if prices:
            _add_budget(found, budget, prices, find_allowed(budget, spending.get(name, NOTHING_SPENT)), rows)
    return found


def _add_budget(
    found: LaunchCaps, budget: Budget, prices: Mapping[str, set[float]], allowed: float, slots: Iterable[Slot]
) -> None:
    paid = (each for each in slots if each.state not in UNPAID and budget.covers(each.pool, each.launched_for or ""))
    most = allowed - sum(each.price or 0.0 for each in paid)
    if most >= sum(found.left[pool] * max(each) for pool, each in prices.items()):
        return
    if budget.is_timed or budget.accounts or any(len(each) > 1 for each in prices.values()):
        found.unplayed.update(prices)
        return
    # A machine without a known price is launched whatever the budget has left.
    found.add(most, {pool: price for pool, each in prices.items() if (price := max(each))})
