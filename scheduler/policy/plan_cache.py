"""The planner's cache: facts about one view that are used again in the next cycle.

The caller of `plan()` owns the cache and keeps it together with the view. All of its content can be computed from the
rows of the view, except `turns`, which records the reservations that the work budget has allowed to be tried. A cycle
in which few rows changed examines few slots. A cycle in which no row changed and no deadline was reached returns the
plan of the last cycle.
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
"""Payer -> ids of the reservations that were tried in the present round. A round of a payer ends when the work budget
has let all of its reservations try once.
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
    """The kept plan is valid until this instant (seconds): a cycle at or after it could decide something."""


class KeptCycle(Protocol):
    """A cycle whose state is kept, so that the next tick plans only what changed since: see `policy/replan`."""

    rules: Rules
    next_protection: float
    """When the starvation guard begins to protect a waiting reservation; infinity: never."""

    def go_on(self, now: float) -> Plan | None:
        """Return the plan of a later tick at `now`; None if only a new cycle can find it."""

    def tidy(self) -> None:
        """Remove from the kept state the entries that changes of the view have made useless."""

    def close(self) -> None:
        """Drop references between objects, so that they are freed at once. Do not use the kept cycle afterwards."""


KeepCycle = Callable[[tuple[WaitBlock, ...]], KeptCycle | None]
"""A function that makes a `KeptCycle` of the last cycle. It returns None if no later tick can go on with that cycle.

Its argument: the waiting reservations of an earlier plan, in blocks.
"""
LEAST_KEPT: Final = 500
"""A cycle is kept only if the view has at least this number of slots and pending reservations together. A smaller view
is planned again in little time.
"""


class PlanCache:
    """Facts about one view that the planner uses again in the next cycle.

    A cache that is used with another view starts empty.
    """

    def __init__(self, least_kept: int = LEAST_KEPT) -> None:
        self._least_kept = least_kept
        self._cycle: KeptCycle | None = None
        self._keep_cycle: KeepCycle | None = None
        self._blocks: tuple[WaitBlock, ...] = ()
        """The blocks of waiting reservations of the last plan whose cycle was kept."""
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
        """Drop the cached facts that changes of the view since the last call have made wrong. `find_plan` calls this
        method.
        """
        if view is not self._view:
            self.turns, self.slots, self._unshared = {}, {}, None
            self._view, self._kept, self._memories = view, None, {}
            self._drop_cycle()
            self._blocks, self._slots_at = (), view.revision
        elif view.revision != self._revision:
            self._kept = None
            self._note_unshared(view)
        self._revision = view.revision
        if self._cycle is None:
            self._drop_slots(view)

    def _note_unshared(self, view: View) -> None:
        unshared, leases_on = self._unshared, view.leases_on
        if unshared is not None:
            for name in list_touched(view, self._revision):
                if name in leases_on:
                    unshared[name] = None
                else:
                    unshared.pop(name, None)

    def _drop_slots(self, view: View) -> None:
        """Drop the facts about slots that have changed since `slots` was last up to date."""
        for name in list_touched(view, self._slots_at):
            self.slots.pop(name, None)
        self._slots_at = view.revision

    def recall(self, kind: type[Memory]) -> Memory:
        """Return the object of the class `kind` in which a step stores facts about this view. The first call makes the
        object, without arguments.
        """
        if kind not in self._memories:
            self._memories[kind] = kind()
        memory: Memory = self._memories[kind]
        return memory

    def list_unshared(self, view: View, rules: Rules) -> dict[str, None]:
        """Return the slots on which the leases' limits of spare cores have to be computed again.

        These are the slots with leases whose row or leases changed since their limits were last found right; after a
        change of the rules, all slots with leases. The caller removes a slot once its limits are right.
        """
        if self._unshared is None or self._shared_under is not rules:
            self._shared_under, self._unshared = rules, dict.fromkeys(view.leases_on)
        return self._unshared

    def find_plan(self, view: View, rules: Rules, now: float) -> Plan | None:
        """Return the last plan if neither view nor rules changed since and no deadline was reached; else None.

        Call it first in each cycle: it also drops the facts that changes of the view have made wrong.
        """
        self.follow(view)
        kept = self._kept
        if kept is None or kept.rules is not rules or not kept.since <= now < kept.until:
            return None
        return kept.plan

    def keep(self, rules: Rules, now: float, plan: Plan, next_protection: float) -> Plan:
        """Store the plan for the next cycle if it has no decisions, and return the plan in each case.

        Under `queue: quota`, where accounts earn and pay all the time, `quota/steady.py` decides how long the plan is
        valid. `next_protection`: when the starvation guard begins to protect a further reservation (seconds).
        """
        if not plan.decisions and not rules.has_quota:
            falls_due = inf if plan.wake_at is None else plan.wake_at
            self._kept = _KeptPlan(plan, rules, now, min(falls_due, next_protection))
        return plan

    def go_on(self, rules: Rules, now: float) -> Plan | None:
        """Return a plan that goes on from the kept cycle with the view's changes; None if only a new cycle can find the
        plan.
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
        """Store the function that can keep the last cycle, unless the view is small. `prepare` calls the function."""
        if len(view.slots) + len(view.waiters) >= self._least_kept:
            self._keep_cycle = keep_cycle

    def prepare(self) -> None:
        """Keep the last cycle, so that the next plan is made faster. Call it after the last plan's commit and before
        the view changes.
        """
        if self._keep_cycle is not None:
            self._cycle, self._keep_cycle = self._keep_cycle(self._blocks), None
        elif self._cycle is not None:
            self._cycle.tidy()

    def _drop_cycle(self) -> None:
        if self._cycle is not None:
            self._cycle.close()
        self._cycle = None
