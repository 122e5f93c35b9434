"""The rules in force at a time: the rules as applied, with the limits of the schedules whose windows are open.

`plan()` knows no schedules: its rules contain the values that are in force. The process that plans finds these values
before each plan, and wakes when they change.
"""

from math import inf
from typing import Any, NamedTuple

from scheduler.model.pools import Pool
from scheduler.model.rules import Rules
from scheduler.model.schedules import OVERRIDES, list_open

_Open = tuple[tuple[str, tuple[int, ...]], ...]
"""One entry for each pool with schedules: (pool, the indexes of its schedules whose windows are open)."""


class InForce(NamedTuple):
    """Rules with the values in force, and the time (seconds since the epoch) at which other values may come into
    force; infinity: never.
    """

    rules: Rules
    until: float


class RulesInForce:
    """Finds the rules in force, and keeps the result until a window of a schedule opens or closes.

    Rules with equal values are returned as the same object, so that a plan cache stays valid.
    """

    def __init__(self) -> None:
        self._base: Rules | None = None
        self._open: _Open = ()
        self._since = inf
        self._found = InForce(Rules(), -inf)

    def find(self, rules: Rules, now: float) -> InForce:
        """Return the rules in force at `now` (seconds since the epoch). `rules`: the rules as applied. In the rules in
        force, the limits of the schedules whose windows are open replace the limits of their pools.
        """
        if self._base is rules and self._since <= now < self._found.until:
            return self._found
        opened, until = _list_open(rules, now)
        if self._base is not rules or opened != self._open:
            self._found = InForce(_override(rules, opened), until)
        self._base, self._open, self._since = rules, opened, now
        self._found = InForce(self._found.rules, until)
        return self._found


def find_rules_in_force(rules: Rules, now: float) -> Rules:
    """Return the rules in force at `now` (seconds since the epoch), and keep no result for later calls. `rules`: the
    rules as applied, without the limits of open schedules. Use `RulesInForce` for repeated calls.
    """
    return RulesInForce().find(rules, now).rules


def _list_open(rules: Rules, now: float) -> tuple[_Open, float]:
    found, until = [], inf
    for name, pool in rules.pools.items():
        if pool.schedules:
            indexes, change = list_open(pool.schedules, now)
            found.append((name, indexes))
            until = min(until, change)
    return tuple(found), until


def _override(rules: Rules, opened: _Open) -> Rules:
    changed = {name: _override_pool(rules.pools[name], indexes) for name, indexes in opened if indexes}
    return rules.model_copy(update={"pools": {**rules.pools, **changed}}) if changed else rules


def _override_pool(pool: Pool, indexes: tuple[int, ...]) -> Pool:
    """Return a pool with the limits of its open schedules. `indexes`: the indexes of these in `pool.schedules`. If
    several set a key, the last one listed counts. A minimum above the maximum counts as the maximum.
    """
    values: dict[str, Any] = {}
    for index in indexes:
        given = ((key, getattr(pool.schedules[index], key)) for key in OVERRIDES)
        values.update((key, value) for key, value in given if value is not None)
    if (budget := values.pop("disruption_budget", None)) is not None:
        values["replacement"] = pool.replacement.model_copy(update={"disruption_budget": budget})
    least, most = values.get("min_slots", pool.min_slots), values.get("max_slots", pool.max_slots)
    if most is not None and least > most:
        values["min_slots"] = most
    return pool.model_copy(update=values)
