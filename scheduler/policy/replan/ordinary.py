"""Tests whether a cycle is ordinary. Only an ordinary cycle is kept, so that a later tick can go on with it.

A cycle is ordinary if (1) its decisions only assign leases or limit CPUs, (2) no slot is in flight or about to change
its state, and (3) the view has no row that a kept cycle cannot plan with, for example a launch back-off.
"""

from typing import Final

from scheduler.model.decisions import Assign, Cores, Plan
from scheduler.model.rules import Rules
from scheduler.model.view import View
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.lifecycle.timers import may_restart_again

_ORDINARY: Final = frozenset({Assign, Cores})
"""Kinds of decisions after which a cycle may be kept: they change only leases on ready slots."""
_WAITING: Final = frozenset({"draining", "terminating", "error", "stopped"})
"""Slot states, other than `ready` and `empty`, that a kept cycle permits. A slot in one of them takes no leases."""


def is_ordinary(cycle: CycleState, outcome: Plan) -> bool:
    """Return whether three conditions are true: no slot is in flight or about to change its state; all decisions assign
    leases or limit CPUs; the view has only rows with which a kept cycle can plan (`has_ordinary_rows`).
    """
    return (
        has_ordinary_rows(cycle.view, cycle.rules)
        and _ORDINARY.issuperset(map(type, outcome.decisions))
        and all(map(_only_waits, cycle.list_restless()))
        and not (cycle.unsound or cycle.vanished or cycle.returning)
    )


def _only_waits(slot_info: SlotInfo) -> bool:
    """Return whether a slot is in one of the states `_WAITING`, and stays in it until a timeout or until its row
    changes.
    """
    slot = slot_info.slot
    is_over = slot.state == "draining" and not slot_info.leases
    return slot.state == slot_info.state and slot.state in _WAITING and slot.interrupted_at is None and not is_over


def has_ordinary_rows(view: View, rules: Rules) -> bool:
    """Return whether a kept cycle can plan with this view and these rules. It cannot if there are launch back-offs,
    revoking reservations, failed reservations that may restart, leased reservations with elastic components, or budgets
    that are not plain (`Rules.has_plain_budgets`).
    """
    failed = view.by_phase["failed"].values()
    return not (
        view.holds
        or view.stretching
        or view.by_phase["revoking"]
        or not rules.has_plain_budgets
        or any(may_restart_again(each, rules) for each in failed)
    )
