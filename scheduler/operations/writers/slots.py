"""Writes decisions about slots, after testing each on the current row."""

from collections.abc import Callable
from typing import Any

import msgspec

from scheduler.model.decisions import Drain, Launch, Reset, SlotReason, Terminate
from scheduler.model.events import Event
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import IN_FLIGHT
from scheduler.operations.boot_health import BOOTING, note_failed_boot
from scheduler.operations.ports import ASKED_AGAIN
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.capacity.slot_info import is_configured, is_unhealthy
from scheduler.policy.lifecycle.timeouts import has_timed_out
from scheduler.policy.scaling.launch_limits import list_choices

_ADJECTIVES = {"at_quota": "free any more", "used_up": "used up", "requested": "to be drained"}
"""By reason: the adjective in "SLOT is not ...", if it differs from the reason."""


class SlotWriter:
    """One method for each kind of decision: it returns None if the decision was written, else why it was skipped."""

    def __init__(self, work: UnitOfWork, rules: Rules, new_id: Callable[[], str]) -> None:
        self.work, self.rules, self.new_id, self.now = work, rules, new_id, work.now

    def write(self, decision: Launch | Drain | Terminate | Reset) -> str | None:
        """Test one decision on the current row and write it; return why it was skipped, or None."""
        current = self.work.slots.get(decision.slot)
        if current is None:
            return "the slot is gone"
        match decision:
            case Launch():
                return self._launch(current, decision)
            case Drain():
                return self._drain(current, decision)
            case Terminate():
                return self._terminate(current, decision)
            case Reset():
                return self._reset(current, decision)

    def _launch(self, current: Slot, decision: Launch) -> str | None:
        pool = self.rules.pools.get(current.pool)
        if pool is None:
            return "the rules have changed"
        choice = next((each for each in list_choices(pool) if each.key == decision.offering), None)
        if choice is None:
            return "the offering is gone"
        if current.state != "empty":
            return f"{current.id} is {current.state}"
        if current.cordoned:
            return f"{current.id} is cordoned"
        self.work.move_slot(
            current,
            "launching",
            reason=decision.reason,
            epoch=current.epoch + 1,
            offering=choice.key,
            market=choice.market or None,
            price=choice.price,
            resources=None if choice.capacity is None else dict(choice.capacity),
            labels=dict(choice.labels),
            launch_id=self.new_id(),
            launch_reason=decision.reason,
            sent_at=self.now,
        )
        return None

    def _drain(self, current: Slot, decision: Drain) -> str | None:
        if current.state != "ready":
            return f"{current.id} is {current.state}"
        if not self._is_to_go(current, decision.reason):
            return f"{current.id} is not {_ADJECTIVES.get(decision.reason, decision.reason)}"
        self.work.move_slot(current, "draining", reason=decision.reason, drain_reason=decision.reason)
        return None

    def _is_to_go(self, current: Slot, reason: SlotReason) -> bool:
        """Return whether this reason to drain holds for the current row."""
        pool = self.rules.pools.get(current.pool)
        is_free = not self.work.leases_on(current) and current.stranger is None
        match reason:
            case "idle":
                return self._is_idle(current)
            case "interrupted":
                return current.interrupted_at is not None
            case "at_quota":
                return is_free and not current.cordoned
            case "unconfigured":
                return pool is None or not is_configured(current, pool)
            case "unhealthy":
                return pool is not None and is_unhealthy(pool, current.unconfirmed, current.failed_probes)
            case "used_up":
                return pool is not None and is_free and 0 < pool.max_uses <= current.uses
            case _:
                return current.drain_reason == reason

    def _is_idle(self, current: Slot) -> bool:
        pool = self.rules.pools.get(current.pool)
        since = current.since if current.idle_since is None else current.idle_since
        is_free = not current.cordoned and not self.work.leases_on(current) and current.stranger is None
        return pool is not None and is_free and self.now - since > pool.idle_scale_down

    def _terminate(self, current: Slot, decision: Terminate) -> str | None:
        if current.state not in IN_FLIGHT | {"draining", "terminating"}:
            return f"{current.id} is {current.state}"
        pool = self.rules.pools.get(current.pool)
        if decision.reason == "timeout" and not has_timed_out(current, pool, self.now):
            return f"{current.id} has moved on"
        if decision.reason == "drained" and self.work.leases_on(current):
            return f"{current.id} holds leases"
        if decision.reason == "timeout" and current.state in BOOTING:
            note_failed_boot(self.work, pool, current, f"timed out while {current.state}")
        slow_work = {"attempts": 0, "not_before": self.now, "sent_at": self.now}
        if current.state == "terminating":
            self._ask_again(current, slow_work)
        else:
            self.work.move_slot(
                current, "terminating", reason=decision.reason, drain_reason=decision.reason, **slow_work
            )
        return None

    def _ask_again(self, current: Slot, slow_work: dict[str, Any]) -> None:
        """Request a termination again that had no effect; its timeout starts again."""
        self.work.put(msgspec.structs.replace(current, since=self.now, **slow_work))
        self.work.tell(Event(at=self.now, name=ASKED_AGAIN, cause="tick", slot=current.id))

    def _reset(self, current: Slot, decision: Reset) -> str | None:
        wanted = "error" if decision.reason == "cooled_down" else "draining"
        if current.state != wanted or self.work.leases_on(current):
            return f"{current.id} is {current.state}"
        self.work.move_slot(current, "empty", reason=decision.reason)
        return None
