"""Whether it happened: each decision of a plan is looked at again on fresh rows, and written or skipped.

Chunks of about 1,000 decisions, each one transaction that checks the term first. A decision is a unit: its
rule is tested on the *current* rows, and only then are they changed; a loser changes nothing, is given back as
`Skipped(reason)`, and the rest of the chunk goes on.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, assert_never

import msgspec

from scheduler.model.decisions import (
    Assign,
    Decision,
    Drain,
    Expire,
    Fail,
    Launch,
    Requeue,
    Reset,
    Restart,
    Skipped,
    Terminate,
)
from scheduler.model.events import Event
from scheduler.model.labels import has_labels
from scheduler.model.moves import ENDED, IN_FLIGHT, IllegalMoveError
from scheduler.model.reservations import NO_COST, Instance, Lease, Reservation, list_instances
from scheduler.model.resources import fits, subtract, total
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.operations.boots import BOOTING, note_failed_boot
from scheduler.operations.engine import ASKED_AGAIN
from scheduler.operations.ledger import Ledger, Outcome
from scheduler.policy.offerings import list_choices
from scheduler.policy.places import capacity_of
from scheduler.policy.ttl import expiry_of_lease, expiry_of_pending
from scheduler.ports import Store, Tenure

CHUNK = 1000
Done = tuple[list[Skipped], Outcome]


def commit(
    store: Store,
    decisions: Sequence[Decision],
    rules: Rules,
    tenure: Tenure,
    new_id: Callable[[], str],
    planned_at: float,
) -> Iterator[Done]:
    """Write the decisions chunk by chunk; after each: who lost, and what changed. Each chunk notes the tick.

    Raises DeposedError as soon as the term is another leader's; chunks that were written before stay written.
    """
    remaining = iter(decisions)
    while chunk := list(islice(remaining, CHUNK)):
        with store.transaction() as transaction:
            transaction.check_term(tenure)
            transaction.note_tick(tenure, planned_at)
            ledger = Ledger(transaction, "tick", tenure.term)
            ledger.load(
                reservations=[name for each in chunk if (name := getattr(each, "reservation", None))],
                slots=[name for each in chunk for name in slots_of(each)],
            )
            writer = _Writer(ledger, rules, new_id)
            skipped = [Skipped(each, reason) for each in chunk if (reason := writer.write(each)) is not None]
            outcome = ledger.flush()
        yield skipped, outcome


def slots_of(decision: Decision) -> list[str]:
    """The slots whose rows a decision is tested on."""
    if isinstance(decision, Assign):
        return [placement.slot for placement in decision.leases]
    return [decision.slot] if isinstance(decision, Launch | Drain | Terminate | Reset) else []


class _Writer:
    """One method a decision: test the rule on the current rows, then change them; the reason if it lost."""

    def __init__(self, ledger: Ledger, rules: Rules, new_id: Callable[[], str]) -> None:
        self.ledger, self.rules, self.new_id, self.now = ledger, rules, new_id, ledger.now

    def write(self, decision: Decision) -> str | None:
        """None when it was written, else why it no longer holds.

        A move that no table allows is a fault of ours, found before anything of it was staged: it is confined to
        its decision, so that one row never stops the whole fleet.
        """
        try:
            match decision:
                case Expire() | Fail() | Requeue() | Restart() | Assign():
                    return self._write_reservation(decision)
                case Launch() | Drain() | Terminate() | Reset():
                    return self._write_slot(decision)
                case _:
                    assert_never(decision)
        except IllegalMoveError as error:
            return str(error)

    def _write_reservation(self, decision: Expire | Fail | Requeue | Restart | Assign) -> str | None:
        current = self.ledger.reservations.get(decision.reservation)
        if current is None:
            return "the reservation is gone"
        match decision:
            case Expire():
                return self._expire(current, decision)
            case Fail():
                return self._fail(current, decision)
            case Requeue():
                return self._requeue(current, decision)
            case Restart():
                return self._restart(current, decision)
            case Assign():
                return self._assign(current, decision)

    def _write_slot(self, decision: Launch | Drain | Terminate | Reset) -> str | None:
        current = self.ledger.slots.get(decision.slot)
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

    def _expire(self, current: Reservation, decision: Expire) -> str | None:
        if current.phase in ENDED:
            return f"it is {current.phase} already"
        if current.expires_at is None or self.now < current.expires_at:
            return "it was renewed"
        self._end(current, "expired", decision.reason)
        return None

    def _fail(self, current: Reservation, decision: Fail) -> str | None:
        if current.phase != "leased":
            return f"it is {current.phase}"
        if not self._has_lost(current, decision.reason):
            return "its slots are there"
        self._end(current, "failed", decision.reason, failed_at=self.now)
        return None

    def _has_lost(self, current: Reservation, reason: str) -> bool:
        """Whether what the plan saw of its essential slots is still so."""
        essential = [lease for lease in current.leases if lease.kind == "essential"]
        present = [lease for lease in essential if self.ledger.is_there(lease)]
        slots = [self.ledger.slots[lease.slot] for lease in present]
        match reason:
            case "slot_gone":
                return len(present) < len(essential)
            case "slot_interrupted":
                return any(slot.interrupted_at is not None for slot in slots)
            case "slot_draining":
                return any(slot.state == "draining" and self._has_timed_out(slot) for slot in slots)
            case "unconfirmed":
                return current.confirmed_at is None
            case "slot_offline":
                return any(self._is_silent(slot) for slot in slots)
            case _:
                return False

    def _is_silent(self, slot: Slot) -> bool:
        pool = self.rules.pools.get(slot.pool)
        if pool is None or pool.is_elastic or slot.last_seen is None:
            return False
        return self.now - slot.last_seen > pool.offline_timeout

    def _requeue(self, current: Reservation, decision: Requeue) -> str | None:
        if current.phase not in {"leased", "revoking"}:
            return f"it is {current.phase}"
        object_to = self._object_to_return if current.phase == "revoking" else self._object_to_taking
        if (objection := object_to(current, decision)) is not None:
            return objection
        if decision.reason == "slot_interrupted" and current.phase == "leased":
            current = msgspec.structs.replace(current, interruptions=current.interruptions + 1)
        if decision.revoke_by is not None:
            self._revoke(current, decision.reason, decision.revoke_by)
        else:
            count = {"unconfirmed": current.unconfirmed + 1} if decision.reason == "unconfirmed" else {}
            return_to_queue(self.ledger, self.rules, current, decision.reason, **count)
        return None

    def _object_to_taking(self, current: Reservation, decision: Requeue) -> str | None:
        """Why a leased one is not to be taken back after all."""
        if decision.reason != "unconfirmed":
            return None if self._has_lost(current, decision.reason) else "its slots are there"
        if current.confirmed_at is not None:
            return "it was confirmed"
        leased_at = self.now if current.leased_at is None else current.leased_at
        due = leased_at + self.rules.scheduler.confirm_timeout
        return "it has time to be confirmed" if self.now < due else None

    def _object_to_return(self, current: Reservation, decision: Requeue) -> str | None:
        """Why one whose holder is to let go does not return to the queue yet."""
        if decision.revoke_by is not None:
            return "it is revoking"
        over = current.revoke_by is None or self.now >= current.revoke_by or self._has_lost(current, "slot_gone")
        return None if over or self._has_lost(current, decision.reason) else "its holder has time to let go"

    def _revoke(self, current: Reservation, reason: str, revoke_by: float) -> None:
        leases = tuple(
            msgspec.structs.replace(lease, state="revoking", revoke_by=revoke_by) for lease in current.leases
        )
        self.ledger.move_reservation(
            current, "revoking", reason=reason, revoke_reason=reason, revoke_by=revoke_by, leases=leases
        )

    def _restart(self, current: Reservation, decision: Restart) -> str | None:
        if current.phase != "failed":
            return f"it is {current.phase}"
        last, delay = current.restarted_at, self.rules.scheduler.restart_delay
        if last is not None and self.now - last <= delay:
            return "it was restarted a moment ago"
        return_to_queue(
            self.ledger,
            self.rules,
            current,
            decision.reason,
            restarts=current.restarts + 1,
            restarted_at=self.now,
            finished_at=None,
        )
        return None

    def _assign(self, current: Reservation, decision: Assign) -> str | None:
        if current.phase != "pending":
            return f"it is {current.phase}"
        if current.suspended or current.priority == 0:
            return "it is on hold"
        if current.expires_at is not None and self.now >= current.expires_at:
            return "its time is over"
        instances = {each.name: each for each in list_instances(current.request, "essential")}
        extra: dict[str, list[dict[str, float]]] = {}
        for placement in decision.leases:
            slot = self.ledger.slots.get(placement.slot)
            taken = extra.setdefault(placement.slot, [])
            reason = self._refuse(slot, placement.epoch, current, instances.get(placement.component), taken)
            if slot is None or reason is not None:
                return reason or f"{placement.slot} is gone"
            taken.append(placement.resources)
        self._lease(current, decision)
        return None

    def _refuse(
        self,
        slot: Slot | None,
        epoch: int,
        current: Reservation,
        instance: Instance | None,
        taken: list[dict[str, float]],
    ) -> str | None:
        """Why this slot, as it now is, cannot take one more instance; None if it can."""
        if slot is None:
            return "its slot is gone"
        pool = self.rules.pools.get(slot.pool)
        if pool is None or instance is None:
            return "the rules have changed"
        if slot.state != "ready" or slot.epoch != epoch:
            return f"{slot.id} is {slot.state}" if slot.state != "ready" else f"{slot.id} has another machine"
        if slot.cordoned or slot.interrupted_at is not None or self._is_silent(slot):
            return f"{slot.id} takes no leases"
        leases = self.ledger.leases_on(slot)
        if len(leases) + len(taken) >= pool.lease_limit:
            return f"{slot.id} is taken"
        labels = instance.component.labels
        if not has_labels(slot.labels, current.request.labels) or not has_labels(slot.labels, labels):
            return f"{slot.id} has other labels"
        capacity = capacity_of(slot, pool)
        used = total([*(lease.resources for lease in leases.values()), *taken])
        wanted = {**pool.default_resources, **instance.component.resources}
        if capacity is not None and not fits(wanted, subtract(capacity, used)):
            return f"{slot.id} has no room"
        return None

    def _lease(self, current: Reservation, decision: Assign) -> None:
        token = self.ledger.transaction.next_tokens(1)[0]
        leases = tuple(
            Lease(
                component=each.component,
                slot=each.slot,
                epoch=each.epoch,
                token=token,
                resources=each.resources,
                cost=NO_COST,
                assigned_at=self.now,
            )
            for each in decision.leases
        )
        self.ledger.move_reservation(
            current,
            "leased",
            leases=leases,
            token=token,
            leased_at=self.now,
            confirmed_at=None,
            declined=(),
            expires_at=expiry_of_lease(current.request, self.rules, self.now),
        )
        for slot_id, count in _count(lease.slot for lease in leases).items():
            slot = self.ledger.slots[slot_id]
            self.ledger.put(msgspec.structs.replace(slot, idle_since=None, uses=slot.uses + count))

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
        self.ledger.move_slot(
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
        if decision.reason == "idle" and not self._is_idle(current):
            return f"{current.id} is not idle"
        if decision.reason == "interrupted" and current.interrupted_at is None:
            return f"{current.id} is not interrupted"
        if decision.reason == "at_quota" and (current.cordoned or self.ledger.leases_on(current)):
            return f"{current.id} is not free any more"
        self.ledger.move_slot(current, "draining", reason=decision.reason, drain_reason=decision.reason)
        return None

    def _is_idle(self, current: Slot) -> bool:
        pool = self.rules.pools.get(current.pool)
        since = current.since if current.idle_since is None else current.idle_since
        is_free = not current.cordoned and not self.ledger.leases_on(current)
        return pool is not None and is_free and self.now - since > pool.idle_scale_down

    def _terminate(self, current: Slot, decision: Terminate) -> str | None:
        if current.state not in IN_FLIGHT | {"draining", "terminating"}:
            return f"{current.id} is {current.state}"
        if decision.reason == "timeout" and not self._has_timed_out(current):
            return f"{current.id} has moved on"
        if decision.reason == "drained" and self.ledger.leases_on(current):
            return f"{current.id} holds leases"
        if decision.reason == "timeout" and current.state in BOOTING:
            pool = self.rules.pools.get(current.pool)
            note_failed_boot(self.ledger, pool, current, f"timed out while {current.state}")
        slow_work = {"attempts": 0, "not_before": self.now, "sent_at": self.now}
        if current.state == "terminating":
            self._ask_again(current, slow_work)
        else:
            self.ledger.move_slot(
                current, "terminating", reason=decision.reason, drain_reason=decision.reason, **slow_work
            )
        return None

    def _ask_again(self, current: Slot, slow_work: dict[str, Any]) -> None:
        """A termination that did not take effect is asked for once more, and its clock starts anew."""
        self.ledger.put(msgspec.structs.replace(current, since=self.now, **slow_work))
        self.ledger.tell(Event(at=self.now, name=ASKED_AGAIN, cause="tick", slot=current.id))

    def _has_timed_out(self, current: Slot) -> bool:
        pool = self.rules.pools.get(current.pool)
        if pool is None:
            return False
        limits = {
            "launching": pool.launch_timeout,
            "booting": pool.boot_timeout,
            "binding": pool.binding_timeout,
            "draining": pool.drain_timeout,
            "terminating": pool.terminating_timeout,
        }
        return self.now >= current.since + limits[current.state]

    def _reset(self, current: Slot, decision: Reset) -> str | None:
        wanted = "error" if decision.reason == "cooled_down" else "draining"
        if current.state != wanted or self.ledger.leases_on(current):
            return f"{current.id} is {current.state}"
        self.ledger.move_slot(current, "empty", reason=decision.reason)
        return None

    def _end(self, current: Reservation, phase: Any, reason: str, **changes: Any) -> None:
        end_reservation(self.ledger, current, phase, reason, **changes)


def end_reservation(
    ledger: Ledger, current: Reservation, phase: Any, reason: str | None, **changes: Any
) -> Reservation:
    """End it: its leases are over, its slots are told, its token stays the last one that it had."""
    ended = ledger.move_reservation(
        current, phase, reason=reason, leases=(), revoke_by=None, revoke_reason=None, **changes
    )
    ledger.free_slots(current)
    return ended


def return_to_queue(ledger: Ledger, rules: Rules, current: Reservation, reason: str, **changes: Any) -> Reservation:
    """It waits again with its place in the queue: leases over, expiry counted anew by the rule for waiting."""
    changes.setdefault("unconfirmed", current.unconfirmed if current.confirmed_at is None else 0)
    returned = ledger.move_reservation(
        current,
        "pending",
        reason=reason,
        leases=(),
        leased_at=None,
        confirmed_at=None,
        revoke_by=None,
        revoke_reason=None,
        expires_at=expiry_of_pending(current.request, rules, ledger.now),
        **changes,
    )
    ledger.free_slots(current)
    return returned


def _count(names: Iterator[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return found
