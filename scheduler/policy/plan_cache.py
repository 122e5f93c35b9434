"""What the planner keeps of one view from one cycle to the next.

The caller of `plan()` owns the cache, beside the view. Everything in it follows from the rows of the view, except
`turns`: which reservations the work budget let try. A cycle in which few rows changed examines few slots, and a cycle
in which no row changed and nothing fell due returns the plan of the last one.
"""

from collections.abc import Callable, Hashable, Iterator
from math import inf
from typing import Any, Final, Protocol, TypeVar

import msgspec

from scheduler.model.decisions import Plan
from scheduler.model.rules import Rules
from scheduler.model.view import View
from scheduler.model.waits import WaitBlock
from scheduler.policy.capacity.slot_info import CachedSlot

Payer = Hashable
"""The principal or the account whose work budget pays for a reservation."""
Turns = dict[Payer, set[str]]
"""By payer: the reservations that were tried under the work budget since all reservations of the payer had been tried.
"""

Memory = TypeVar("Memory")


def list_touched(view: View, since: int) -> Iterator[str]:
    """Yield the slots whose row or whose leases changed after the revision `since` of the view."""
    for name, revision in reversed(view.touched.items()):
        if revision <= since:
            return
        yield name


class _KeptPlan(msgspec.Struct, frozen=True):
    plan: Plan
    rules: Rules
    since: float
    until: float
    """The kept plan is valid until this instant (seconds): a cycle at or after it could decide something."""


class KeptCycle(Protocol):
    """A cycle that can go on in a later tick: see `policy/replan`."""

    rules: Rules
    next_protection: float
    """When the starvation guard begins to protect a waiting reservation; infinity: never."""

    def go_on(self, now: float) -> Plan | None:
        """Return the plan of a later tick; None if only a full cycle can find it."""

    def tidy(self) -> None:
        """Drop what changes have left behind."""

    def close(self) -> None:
        """Drop references between objects. The cycle is of no further use."""


KeepCycle = Callable[[tuple[WaitBlock, ...]], KeptCycle | None]
"""A function that returns the cycle of the last plan to go on with, None if it cannot go on.

It is called with the blocks of the waiting reservations of an earlier plan.
"""
LEAST_KEPT: Final = 500
"""A cycle with fewer slots and pending reservations together is not kept: planning it again costs little."""


class PlanCache:
    """What the planner keeps of one view from one cycle to the next.

    A cache that is used with another view starts empty.
    """

    def __init__(self, least_kept: int = LEAST_KEPT) -> None:
        self._least_kept = least_kept
        self._cycle: KeptCycle | None = None
        self._keep_cycle: KeepCycle | None = None
        self._blocks: tuple[WaitBlock, ...] = ()
        """The blocks of the last plan of which the cycle was kept."""
        self.turns: Turns = {}
        self.slots: dict[str, CachedSlot] = {}
        """By slot id: the facts that follow from the slot's row and its leases alone."""
        self._memories: dict[type, Any] = {}
        self._view: View | None = None
        self._revision = 0
        self._kept: _KeptPlan | None = None
        self._unshared: set[str] | None = None
        self._shared_under: Rules | None = None

    def follow(self, view: View) -> None:
        """Drop the cached facts that changes of the view since the last call have made wrong."""
        if view is not self._view:
            self.turns, self.slots, self._unshared = {}, {}, None
            self._view, self._kept, self._memories = view, None, {}
            self._drop_cycle()
            self._blocks = ()
        elif view.revision != self._revision:
            self._kept = None
            for name in list_touched(view, self._revision):
                self.slots.pop(name, None)
                if self._unshared is not None and name in view.leases_on:
                    self._unshared.add(name)
                elif self._unshared is not None:
                    self._unshared.discard(name)
        self._revision = view.revision

    def recall(self, kind: type[Memory]) -> Memory:
        """Return what a step keeps of this view; it is made, without arguments, when it is asked for first."""
        if kind not in self._memories:
            self._memories[kind] = kind()
        memory: Memory = self._memories[kind]
        return memory

    def list_unshared(self, view: View, rules: Rules) -> set[str]:
        """Return the slots with leases whose shares of the spare cores have to be compared again.

        Of such a slot, a row or the rules changed since the shares were found right. The caller takes a slot out once
        its shares are right.
        """
        if self._unshared is None or self._shared_under is not rules:
            self._shared_under, self._unshared = rules, set(view.leases_on)
        return self._unshared

    def find_plan(self, rules: Rules, now: float) -> Plan | None:
        """Return the last plan if neither view nor rules changed and nothing fell due since; else None."""
        kept = self._kept
        if kept is None or kept.rules is not rules or not kept.since <= now < kept.until:
            return None
        return kept.plan

    def keep(self, rules: Rules, now: float, plan: Plan, next_protection: float) -> Plan:
        """Keep the plan for the next cycle if it has no decisions, and return it.

        Under `queue: quota`, where accounts earn and pay all the time, `quota/steady.py` keeps it.
        `next_protection`: when the starvation guard begins to protect a further reservation.
        """
        if not plan.decisions and not rules.has_quota:
            falls_due = inf if plan.wake_at is None else plan.wake_at
            self._kept = _KeptPlan(plan, rules, now, min(falls_due, next_protection))
        return plan

    def go_on(self, rules: Rules, now: float) -> Plan | None:
        """Return the plan of the last cycle if it can go on after the view's changes; else None."""
        self._keep_cycle = None
        cycle = self._cycle
        outcome = cycle.go_on(now) if cycle is not None and cycle.rules is rules else None
        if cycle is None or outcome is None:
            self._drop_cycle()
            return None
        self._blocks = outcome.waiting.cut()
        return self.keep(rules, now, outcome, cycle.next_protection)

    def offer(self, view: View, keep_cycle: KeepCycle) -> None:
        """Accept the cycle of the last plan; `prepare` keeps it."""
        if len(view.slots) + len(view.waiters) >= self._least_kept:
            self._keep_cycle = keep_cycle

    def prepare(self) -> None:
        """Make the next plan quicker, after the last one was carried out and before the view changes."""
        if self._keep_cycle is not None:
            self._cycle, self._keep_cycle = self._keep_cycle(self._blocks), None
        elif self._cycle is not None:
            self._cycle.tidy()

    def _drop_cycle(self) -> None:
        if self._cycle is not None:
            self._cycle.close()
        self._cycle = None
