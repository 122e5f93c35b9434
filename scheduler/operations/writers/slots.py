"""Writes a plan's decisions about slots, after testing each against the current row. Also counts failed boots: enough
of them in a row pause the launches of the pool.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from scheduler.model.decisions import Drain, Launch, Reset, SlotReason, Start, Stop, Terminate
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.lives import find_drift, find_end_of_life
from scheduler.model.pools import Pool
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import IN_FLIGHT
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.capacity.slot_info import count_uses_left, is_configured, is_unhealthy
from scheduler.policy.lifecycle.timers import has_timed_out, is_silent
from scheduler.policy.scaling.offerings import Choice, list_choices
from scheduler.policy.scaling.pool_size import find_idle_end, is_new_in_tier

BOOTING: Final = frozenset({"booting", "binding"})
ASKED_AGAIN = "slot_asked_again"
"""Name of the event that the termination of a machine was requested again, because the first request had no effect. The
state of the slot does not change.
"""
MOST_IN_BATCH: Final = 500
"""The most machines for which one request asks. EC2 takes up to 1,000 for a fleet of type instant."""
_REPLACEMENTS: Final = frozenset({"aged", "drifted", "consolidated"})
_ADJECTIVES = {
    "at_quota": "free any more",
    "over_budget": "to be drained",
    "used_up": "used up",
    "aged": "too old",
    "requested": "to be drained",
}
"""Reason of a drain -> the words that follow "SLOT is not" in the message that the drain was skipped. Reasons that are
such words themselves are missing.
"""


class SlotWriter:
    """Writes a plan's decisions about slots in a transaction. If a decision is skipped, its method returns the reason
    as text, else None.
    """

    def __init__(self, work: UnitOfWork, rules: Rules, new_id: Callable[[], str]) -> None:
        self.work, self.rules, self.new_id, self.now = work, rules, new_id, work.now
        self._launched: dict[tuple[str, str | None, str | None], list[str]] = {}
        """(pool, offering, gang) -> the slots that were launched in this transaction. One request to the cloud can ask
        for the machines of all slots of an entry.
        """

    def write(self, decision: Launch | Start | Stop | Drain | Terminate | Reset) -> str | None:
        """Test one decision about a slot against the current row and write it. If it is skipped, return the reason as
        text, else None.
        """
        current = self.work.slots.get(decision.slot)
        if current is None:
            return "the slot does not exist any more"
        match decision:
            case Launch():
                return self._launch(current, decision)
            case Start():
                return self._start(current, decision)
            case Stop():
                return self._stop(current, decision)
            case Drain():
                return self._drain(current, decision)
            case Terminate():
                return self._terminate(current, decision)
            case Reset():
                wanted = "error" if decision.reason == "cooled_down" else "draining"
                if current.state != wanted or self.work.leases.list_on(current):
                    return f"{current.id} is {current.state}"
                self.work.move_slot(current, "empty", reason=decision.reason)
                return None

    def _launch(self, current: Slot, decision: Launch) -> str | None:
        pool = self.rules.pools.get(current.pool)
        if pool is None:
            return "the rules have changed since the plan"
        choice = next((each for each in list_choices(pool) if each.key == decision.offering), None)
        if choice is None:
            return "the offering is not configured any more"
        if current.state != "empty":
            return f"{current.id} is {current.state}"
        if current.cordoned:
            return f"{current.id} is cordoned"
        self.work.move_slot(
            current,
            "launching",
            reason=decision.reason,
            epoch=current.epoch + 1,
            market=choice.market or None,
            **describe_choice(choice),
            launch_id=self.new_id(),
            launch_reason=decision.reason,
            launched_for=decision.account,
            gang=decision.gang,
            launched_at=self.now,
            launch_digest=pool.launch_digest,
            sent_at=self.now,
            refusal=None,
        )
        if not pool.ec2.names_slot:
            self._launched.setdefault((current.pool, choice.key, decision.gang), []).append(current.id)
        return None

    def _start(self, current: Slot, decision: Start) -> str | None:
        pool = self.rules.pools.get(current.pool)
        if pool is None:
            return "the rules have changed since the plan"
        if current.state != "stopped" or current.power is not None:
            return f"{current.id} is {current.state if current.power is None else 'not stopped yet'}"
        if current.cordoned or current.drain_reason:
            return f"{current.id} is {'cordoned' if current.cordoned else 'to be drained'}"
        changes: dict[str, Any] = {}
        if decision.offering != current.offering:
            choice = next((each for each in list_choices(pool) if each.key == decision.offering), None)
            if choice is None or not pool.resize_stopped:
                return "the offering is not configured any more"
            changes = describe_choice(choice)
        self.work.move_slot(
            current,
            "booting",
            reason=decision.reason,
            power="start",  # promise: start-stored-first
            launch_reason=decision.reason,
            launched_for=decision.account,
            batch=None,
            last_seen=self.now,
            missed=0,
            failed_probes=0,
            unconfirmed=0,
            refusal=None,
            **self._call_soon(),
            **changes,
        )
        return None

    def _call_soon(self) -> dict[str, Any]:
        """Return the field values of a slot for which a call of the cloud was decided. With these values, the task for
        the call is sent after the commit, and its first attempt is due now.
        """
        return {"attempts": 0, "not_before": self.now, "sent_at": self.now}

    def _stop(self, current: Slot, decision: Stop) -> str | None:
        pool = self.rules.pools.get(current.pool)
        if pool is None or not pool.stopped_slots:
            return "the rules have changed since the plan"
        if current.state != "ready" or current.market != "on-demand":
            return f"{current.id} is {current.state if current.state != 'ready' else 'no on-demand machine'}"
        if current.cordoned or current.drain_reason or current.interrupted_at is not None:
            return f"{current.id} is {'cordoned' if current.cordoned else 'to be drained'}"
        is_new = is_new_in_tier(current)
        if not (is_new if decision.reason == "booted" else True) or not self._is_to_go(current, "idle", is_new=is_new):
            return f"{current.id} is not idle"
        self.work.move_slot(
            current,
            "stopped",
            reason=decision.reason,
            power="stop",  # promise: stop-stored-first
            storage_price=pool.stopped_price,
            idle_since=None,
            missed=0,
            **self._call_soon(),
        )
        return None

    def form_batches(self) -> None:
        """Put the slots that were launched in this transaction into batches, by pool, offering and gang. One request to
        the cloud launches all machines of a batch. A slot that would be alone in its batch is launched alone.
        """
        for names in self._launched.values():
            if len(names) > 1:
                for first in range(0, len(names), MOST_IN_BATCH):
                    # The launch id of the first slot is an id that no other batch has.
                    identity = self.work.slots[names[first]].launch_id
                    for name in names[first : first + MOST_IN_BATCH]:
                        self.work.put(msgspec.structs.replace(self.work.slots[name], batch=identity))
        self._launched.clear()

    def _drain(self, current: Slot, decision: Drain) -> str | None:
        if current.state != "ready":
            return f"{current.id} is {current.state}"
        if current.cordoned and decision.reason in _REPLACEMENTS:
            return f"{current.id} is cordoned"
        if not self._is_to_go(current, decision.reason):
            return f"{current.id} is not {_ADJECTIVES.get(decision.reason, decision.reason)}"
        self.work.move_slot(current, "draining", reason=decision.reason, drain_reason=decision.reason)
        return None

    def _is_to_go(  # noqa: C901 - one case for each reason
        self, current: Slot, reason: SlotReason, *, is_new: bool = False
    ) -> bool:
        """Return whether the reason for which the plan drains or stops a slot still holds for the current row of the
        slot. `is_new`: the machine was booted only for the stopped tier. Such a machine may go at once for the reason
        `idle`.
        """
        pool = self.rules.pools.get(current.pool)
        is_free = not self.work.leases.list_on(current) and current.stranger is None
        match reason:
            case "idle":
                is_idle = is_free and not current.cordoned
                is_past = pool is not None and self.now >= find_idle_end(current.free_since, pool)
                return is_idle and (is_past or is_new)
            case "interrupted":
                return current.interrupted_at is not None
            case "at_quota":
                return is_free and not current.cordoned
            case "over_budget":
                return pool is not None and not current.cordoned
            case "unconfigured":
                return pool is None or current.drain_reason == reason or not is_configured(current, pool)
            case "unhealthy":
                return pool is not None and is_unhealthy(pool, current.unconfirmed, current.failed_probes)
            case "silent":
                return is_silent(current, pool, self.now)
            case "aged" | "drifted":
                return pool is not None and _is_to_be_replaced(current, pool, reason, self.now)
            case "consolidated":
                return is_free
            case "used_up":
                return pool is not None and is_free and not count_uses_left(current, pool)
            case _:
                return current.drain_reason == reason

    def _terminate(self, current: Slot, decision: Terminate) -> str | None:
        if current.state not in IN_FLIGHT | {"draining", "terminating", "stopped"}:
            return f"{current.id} is {current.state}"
        pool = self.rules.pools.get(current.pool)
        if decision.reason in {*_REPLACEMENTS, "surplus"} and (current.state != "stopped" or current.cordoned):
            return f"{current.id} is {current.state}"
        if decision.reason == "timeout" and not has_timed_out(current, pool, self.now):
            return f"{current.id} has not timed out"
        if decision.reason == "drained" and self.work.leases.list_on(current):
            return f"{current.id} still has leases"
        if decision.reason == "timeout" and current.state in BOOTING:
            note_failed_boot(self.work, pool, current, f"timed out while {current.state}")
        slow_work = {**self._call_soon(), "power": None}
        if current.state == "stopped" and current.power is None:
            slow_work["price"] = current.storage_price  # until its end the machine costs only its storage
        if current.state == "terminating":
            # The termination request had no effect. It is sent again, and its timeout starts again. The delays between
            # requests that the cloud refuses go on growing.
            slow_work["attempts"] = current.attempts if current.refusal else 0
            self.work.put(msgspec.structs.replace(current, since=self.now, **slow_work))
            self.work.note(ASKED_AGAIN, cause="tick", slot=current.id)
        else:
            slow_work |= {"drain_reason": decision.reason, "refusal": None}
            self.work.move_slot(current, "terminating", reason=decision.reason, **slow_work)
        return None


def describe_choice(choice: Choice) -> dict[str, Any]:
    """Return the field values that a slot gets from the chosen offering when its machine is launched or started."""
    return {
        "offering": choice.key,
        "price": choice.price,
        "resources": None if choice.capacity is None else dict(choice.capacity),
        "labels": dict(choice.labels),
    }


def _is_to_be_replaced(slot: Slot, pool: Pool, reason: SlotReason, now: float) -> bool:
    """Return whether, by the rules of its pool, a slot's machine is too old (`aged`) or has drifted, as `reason`
    states. Return False for a slot on which an unknown reservation was reported to run (`stranger`).
    """
    rules = pool.replacement
    if slot.stranger is not None:
        return False
    if reason == "aged":
        return bool(rules.max_age) and now >= find_end_of_life(slot, rules)
    return rules.drift == "replace" and bool(find_drift(slot, pool.launch_digest))


def note_failed_boot(work: UnitOfWork, pool: Pool | None, slot: Slot, what_happened: str) -> None:
    """Count a failed boot of a machine of this pool (None: the rules no longer have the pool, so nothing is counted).
    After `unhealthy_after` failed boots in a row, pause the pool's launches for `error_cooldown`.

    The boot of a slot that was interrupted or is being drained does not count. `what_happened`: how the boot failed.
    The text is stored in the `subject` of the pause, behind the id of the slot.
    """
    if pool is None or not pool.unhealthy_after or slot.interrupted_at is not None or slot.drain_reason:
        return
    known = _find_hold(work, slot.pool)
    streak = known.streak + 1 if known else 1
    work.put(
        Hold(
            version=known.version if known else 0,
            id=hold_id(slot.pool, "unhealthy"),
            pool=slot.pool,
            kind="unhealthy",
            subject=f"{slot.id} {what_happened}",
            refused_at=work.now,
            until=work.now + pool.error_cooldown if streak >= pool.unhealthy_after else work.now,
            streak=streak,
        )
    )


def note_good_boot(work: UnitOfWork, slot: Slot) -> None:
    """Set the number of failed boots in a row of the slot's pool to 0, because a machine of the pool became ready."""
    known = _find_hold(work, slot.pool)
    if known is not None and known.streak:
        work.put(msgspec.structs.replace(known, streak=0, until=work.now))


def _find_hold(work: UnitOfWork, pool: str) -> Hold | None:
    """Return the row that counts the failed boots of a pool, as changed in this transaction, else as stored. Return
    None if there is none.
    """
    name = hold_id(pool, "unhealthy")
    return work.holds.get(name) or work.transaction.load_holds([name]).get(name)
