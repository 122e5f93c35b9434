"""The planner's cache: facts about one view that are used again in the next cycle.

The caller of `plan()` owns the cache and keeps it together with the view. All content of the cache can be computed from
the rows of the view, except `turns`: the reservations that were already tried in the present round of a work budget.
With the cache, a cycle in which few rows changed examines few slots. A cycle in which no row changed and no deadline
was reached returns the plan of the last cycle.
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
"""The key of a work budget: the principal that sent a reservation's request, or its account."""
Turns = dict[Payer, set[str]]
"""Payer -> ids of its reservations that were tried in the present round. The round of a payer ends when cycles have
tried to place each of its reservations once. A round may take several cycles, because the work budget limits each one.
"""

Memory = TypeVar("Memory")


def list_touched(view: View, since: int) -> Iterator[str]:
    """Yield the ids of the slots whose row or whose leases changed after the revision `since` of the view."""
    for name, revision in reversed(view.touched.items()):
        if revision <= since:
            return
        yield name


class _KeptPlan(msgspec.Struct, frozen=True):
    plan: Plan
    rules: Rules
    since: float
    until: float
    """The kept plan is valid before this time (seconds since the epoch). Later a cycle may have a decision to make."""


class KeptCycle(Protocol):
    """A cycle whose state is kept, so that the next tick plans only what has changed since then (`policy/replan`)."""

    rules: Rules
    next_protection: float
    """The time from which on the starvation guard protects the oldest waiting reservation (seconds since the epoch).
    Infinity: the guard is off, or no reservation waits.
    """

    def go_on(self, now: float) -> Plan | None:
        """Return the plan of a later tick at `now`; None if only a full cycle can find it."""

    def tidy(self) -> None:
        """Remove entries from the kept state that are outdated after changes of the view, to save memory."""

    def close(self) -> None:
        """Drop references between objects, so that they are freed at once. Do not use the kept cycle afterwards."""


KeepCycle = Callable[[tuple[WaitBlock, ...]], KeptCycle | None]
"""A function that makes a `KeptCycle` of the last cycle. It returns None if no later tick can go on with that cycle.

Its argument: the waiting reservations of an earlier plan, in blocks that the new kept cycle uses again.
"""
LEAST_KEPT: Final = 500
"""A cycle is kept only if the view has at least this number of slots and pending reservations together. A smaller view
is planned from the beginning in little time.
"""


class PlanCache:
    """Facts about one view that the planner uses again in the next cycle.

    When the cache is used with another view, it removes all facts first.
    """

    def __init__(self, least_kept: int = LEAST_KEPT) -> None:
        self._least_kept = least_kept
        self._cycle: KeptCycle | None = None
        self._keep_cycle: KeepCycle | None = None
        self._blocks: tuple[WaitBlock, ...] = ()
        """The waiting reservations in the last plan of a kept cycle, in queue order. They are divided into blocks of
        limited length (`WaitBlock`). The next kept cycle uses unchanged blocks again.
        """
        self.turns: Turns = {}
        self.slots: dict[str, CachedSlot] = {}
        """Slot id -> the facts that follow from the slot's row and its leases alone."""
        self._memories: dict[type, Any] = {}
        self._view: View | None = None
        self._revision = 0
        self._slots_at = 0
        """The revision of the view up to which `slots` contains no outdated facts. A kept cycle renews the facts of
        changed slots itself, so outdated facts are dropped only before a full cycle.
        """
        self._kept: _KeptPlan | None = None
        self._unshared: dict[str, None] | None = None
        self._shared_under: Rules | None = None

    def follow(self, view: View) -> None:
        """Remove the cached facts that are wrong after changes of the view since the last call. `find_plan` calls this
        method.
        """
        if view is not self._view:
            self.turns, self.slots, self._unshared = {}, {}, None
            self._view, self._kept, self._memories = view, None, {}
            self._drop_cycle()
            self._blocks, self._slots_at = (), view.revision
        elif view.revision != self._revision:
            self._kept = None
            unshared, leases_on = self._unshared, view.leases_on
            if unshared is not None:
                for name in list_touched(view, self._revision):
                    if name in leases_on:
                        unshared[name] = None
                    else:
                        unshared.pop(name, None)
        self._revision = view.revision
        if self._cycle is None:
            self._drop_slots(view)

    def _drop_slots(self, view: View) -> None:
        """Remove the facts about slots that have changed since the revision `_slots_at`."""
        for name in list_touched(view, self._slots_at):
            self.slots.pop(name, None)
        self._slots_at = view.revision

    def recall(self, kind: type[Memory]) -> Memory:
        """Return the object of the class `kind` in which a step stores facts about this view. At the first call the
        object is made, as `kind()`.
        """
        if kind not in self._memories:
            self._memories[kind] = kind()
        memory: Memory = self._memories[kind]
        return memory

    def list_unshared(self, view: View, rules: Rules) -> dict[str, None]:
        """Return the ids of the slots on which the leases' limits of spare cores have to be computed again.

        These are the slots with leases whose row or leases changed since their limits were last found right. After a
        change of the rules they are all slots with leases. The caller removes a slot once its limits are right.
        """
        if self._unshared is None or self._shared_under is not rules:
            self._shared_under, self._unshared = rules, dict.fromkeys(view.leases_on)
        return self._unshared

    def find_plan(self, view: View, rules: Rules, now: float) -> Plan | None:
        """Return the last plan if neither the view nor the rules have changed since then and no deadline was reached;
        else None.

        Call this method first in each cycle: through `follow` it also removes the cached facts that are wrong after
        changes of the view, for example facts about slots whose row or leases changed.
        """
        self.follow(view)
        kept = self._kept
        return None if kept is None or kept.rules is not rules or not kept.since <= now < kept.until else kept.plan

    def keep(self, rules: Rules, now: float, plan: Plan, next_protection: float) -> Plan:
        """Return the plan `plan`. If it has no decisions, store it for the next cycle.

        Under `queue: quota`, where accounts earn and pay all the time, nothing is stored here: `quota/step.py` keeps
        the plan. `next_protection`: when the starvation guard begins to protect a further reservation (seconds since
        the epoch).
        """
        if not plan.decisions and not rules.has_quota:
            falls_due = inf if plan.wake_at is None else plan.wake_at
            self._kept = _KeptPlan(plan, rules, now, min(falls_due, next_protection))
        return plan

    def go_on(self, rules: Rules, now: float) -> Plan | None:
        """Return the plan of this tick, if the kept cycle can go on with the changes of the view; None if only a full
        cycle can find the plan.
        """
        self._keep_cycle = None
        cycle = self._cycle
        outcome = cycle.go_on(now) if cycle is not None and cycle.rules is rules else None
        if cycle is None or outcome is None:
            self._drop_cycle()
            if self._view is not None:
                self._drop_slots(self._view)
            return None
        self._slots_at = self._revision
        self._blocks = outcome.waiting.cut()
        return self.keep(rules, now, outcome, cycle.next_protection)

    def offer(self, view: View, keep_cycle: KeepCycle) -> None:
        """Store the function that can keep the last cycle, unless the view is small (`LEAST_KEPT`). `prepare` calls the
        function.
        """
        if len(view.slots) + len(view.waiters) >= self._least_kept:
            self._keep_cycle = keep_cycle

    def prepare(self) -> None:
        """Keep the last cycle, so that the next plan is made faster. Call it after the commit of the last plan and
        before the view changes.
        """
        if self._keep_cycle is not None:
            self._cycle, self._keep_cycle = self._keep_cycle(self._blocks), None
        elif self._cycle is not None:
            self._cycle.tidy()

    def _drop_cycle(self) -> None:
        if self._cycle is not None:
            self._cycle.close()
        self._cycle = None
