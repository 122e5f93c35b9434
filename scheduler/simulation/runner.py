"""Play a scenario on the virtual clock and say what happened, line by line."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import Any

import msgspec

from scheduler.model.accounts import Account
from scheduler.model.decisions import Claim, describe_decision
from scheduler.model.events import Event
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.slots import Slot, slot_order
from scheduler.model.validation import Document
from scheduler.operations.apply import apply_rules
from scheduler.operations.commands import lease_commands
from scheduler.operations.commands.hosts import register
from scheduler.operations.commands.registry import load_rows, say
from scheduler.operations.commands.reports import NOTICE_WORDS
from scheduler.operations.machines.reconcile import reconcile
from scheduler.operations.tick.tick import Ticked
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.quota.accounting import settle
from scheduler.simulation.cloud_documents import FoundDocument
from scheduler.simulation.cluster import (
    SimulatedCluster,
    build_stage,
    put_absent_host,
    put_reservations,
    put_slot,
    submit_all,
)
from scheduler.simulation.commands import make_document
from scheduler.simulation.holders import Holders
from scheduler.simulation.loop import EventLoop
from scheduler.simulation.machine_loss import heed, interrupt_slot, lose_slot
from scheduler.simulation.restoring import restore
from scheduler.simulation.scenario import Scenario
from scheduler.simulation.steps import Step

Line = dict[str, Any]
PRINTED = frozenset(
    {
        *(f"slot_{state}" for state in ("launching", "booting", "binding", "ready", "draining")),
        *(f"slot_{state}" for state in ("terminating", "empty", "error", "adopted")),
        "register_refused",
        "reservation_submitted",
        *(f"reservation_{phase}" for phase in ("leased", "revoking", "released", "cancelled")),
        *(f"reservation_{phase}" for phase in ("expired", "failed", "pending")),
    }
)
"""The events that are printed: those of the contract."""


def play(scenario: Scenario) -> Iterator[Line]:
    """The lines of one play: a line a tick, a line for every other change of state, one for the final state."""
    yield from Runner(scenario).play()


class Runner:
    """Plays instant by instant: what fell due, then the actions, then the ticks that are asked for."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.stage: SimulatedCluster = build_stage(scenario.config, scenario.cloud)
        self._holders = Holders(self.stage)
        self._seen = len(self.stage.store.events)
        self._clockwork = EventLoop(
            self.stage, self._tell_events, self._tell_tick, kicks=scenario.kicks, wakes=scenario.wakes
        )
        self._next_tick, self._periods = 0.0 if scenario.tick_every else inf, 0
        self._lines: list[Line] = []
        self._set_up()

    def _set_up(self) -> None:
        put_reservations(self.stage, self._scenario.reservations)
        for slot in self._scenario.slots:
            put_slot(self.stage, slot)
        for row in self.stage.store.find_reservations(limit=len(self._scenario.reservations) or 1):
            self._holders.watch(row)
        restore(self.stage, self._scenario)
        self.stage.notifier.hear()
        self._tell_events()
        self._lines.clear()

    def play(self) -> Iterator[Line]:
        """All lines, as they come."""
        steps = deque(self._scenario.timeline)
        end = max(self._scenario.until, steps[-1].at if steps else 0.0)
        while (now := self._next_instant(steps)) <= end:
            self.stage.agenda.now = now
            self._clockwork.run_due()
            while steps and steps[0].at <= now:
                self._play_step(steps.popleft())
            self._clockwork.tick_until_quiet(is_due=self._is_tick_due())
            yield from self._take_lines()
        self.stage.agenda.now = end
        yield self._describe_state()

    def _take_lines(self) -> list[Line]:
        lines, self._lines = self._lines, []
        return lines

    def _next_instant(self, steps: deque[Step]) -> float:
        return min(steps[0].at if steps else inf, self._clockwork.next_instant(), self._next_tick)

    def _tell_events(self) -> bool:
        """Print the events that are new and let the holders see them; whether there were any."""
        events = self.stage.store.events[self._seen :]
        self._seen += len(events)
        for event in events:
            if event.name in PRINTED:
                self._lines.append(_describe_event(event))
        names = dict.fromkeys(event.reservation for event in events if event.reservation)
        if names:
            for row in self.stage.store.find_reservations(ids=list(names), limit=len(names)):
                self._holders.watch(row)
        return bool(events)

    def _is_tick_due(self) -> bool:
        now, every = self.stage.agenda.now, self._scenario.tick_every
        if every is None or now < self._next_tick:
            return False
        self._periods += 1
        self._next_tick = self._periods * every
        return True

    def _tell_tick(self, ticked: Ticked) -> None:
        self._lines.append(self._describe_tick(ticked))

    def _describe_tick(self, ticked: Ticked) -> Line:
        reasons = {id(each.decision): each.reason for each in ticked.skipped}
        decisions = []
        for decision in ticked.plan.decisions:
            if isinstance(decision, Claim):
                continue  # its revokes are printed, and its assignment when they are over
            line = describe_decision(decision)
            if id(decision) in reasons:
                line["skipped"] = reasons[id(decision)]
            decisions.append(line)
        waiting = [msgspec.to_builtins(each) for each in ticked.plan.waiting]
        return {"at": ticked.now, "tick": self._clockwork.ticks, "decisions": decisions, "waiting": waiting}

    def _play_step(self, step: Step) -> None:
        if step.action == "tick":
            self._clockwork.tick(lambda: self._act_all(step.value))
        else:
            self._act(step)
            self._clockwork.run_due()

    def _act_all(self, between: tuple[Step, ...]) -> None:
        for step in between:
            self._act(step)

    def _act(self, step: Step) -> None:
        """Carry out one action; ids that nobody knows are no error where the contract says so."""
        stage, value = self.stage, step.value
        match step.action:
            case "submit":
                submit_all(stage, value)
            case "slot":
                put_slot(stage, value)
            case "cordon":
                put_absent_host(stage, value)
                self._say(step.action, make_document(step.action, value))
            case "rules":
                apply_rules(stage.ports, value, prefix=step.path)
            case "outage":
                stage.cloud.outages.append(value)
            case "register":
                rules = stage.ports.rules()
                self._change(lambda work: register(work, rules, value), kick_for_marks=True, slots=[value.slot])
            case "remove":
                self._change(lambda work: _remove(work, value), slots=[value])
            case "interrupt" | "rebalance" | "lose" | "found":
                self._let_happen(step)
            case "seen":
                self._change(lambda work: lease_commands.hear(work, value), slots=[value])
            case _:
                self._say(step.action, make_document(step.action, value))

    def _let_happen(self, step: Step) -> None:
        """What becomes of a machine without anybody's word, or is said ahead of it."""
        match step.action:
            case "interrupt":
                interrupt_slot(self.stage, step.value.slot, step.value.deadline)
            case "rebalance":
                rules = self.stage.ports.rules()
                self._change(lambda work: lease_commands.rebalance(work, rules, step.value), slots=[step.value])
            case "lose":
                lose_slot(self.stage, step.value)
            case _:
                self._find(step.value)

    def _say(self, verb: str, document: Document) -> None:
        """As the intake does, with an operator's word; nobody hears of a refusal."""
        rules = self.stage.ports.rules()
        self.stage.change(
            heed(lambda work: say(work, rules, verb, document)),
            lambda work: load_rows(work, rules, verb, [document]),
            kick_for_marks=verb in NOTICE_WORDS,
        )

    def _change(self, act: Callable[[UnitOfWork], object], *, kick_for_marks: bool = False, slots: list[str]) -> None:
        self.stage.change(heed(act), lambda work: work.load(slots=slots), kick_for_marks=kick_for_marks)

    def _find(self, found: FoundDocument) -> None:
        """A machine that nobody launched is noticed at once; one that has to go, once more when it is gone."""
        stage = self.stage
        stage.cloud.find(found.pool, found.slot, found.offering)
        if reconcile(stage.ports).strangers:
            gone_at = stage.agenda.now + stage.cloud.delays.terminate
            stage.agenda.note(gone_at, lambda: reconcile(stage.ports))

    def _describe_state(self) -> Line:
        store = self.stage.store
        pools = list(self.stage.ports.rules().pools)
        slots = sorted(
            store.find_slots(),
            key=lambda slot: (
                pools.index(slot.pool) if slot.pool in pools else len(pools),
                slot_order(slot.id),
            ),
        )
        reservations, now = store.find_reservations(limit=2**31), self.stage.agenda.now
        leases = _sort_leases(reservations)
        state = {
            "slots": [_describe_slot(slot, leases.get((slot.id, slot.epoch), ()), now) for slot in slots],
            "reservations": [_describe_reservation(row) for row in reservations],
            "accounts": [_describe_account(row) for row in store.find_accounts() if not row.forgotten],
        }
        return {"at": now, "state": state}


def _remove(work: UnitOfWork, name: str) -> None:
    slot = work.slots.get(name)
    if slot is not None:
        work.delete(slot)
        work.tell(Event(at=work.now, name="slot_removed", cause="operator", slot=name))


def _describe_event(event: Event) -> Line:
    subject = {"slot": event.slot} if event.slot else {"reservation": event.reservation}
    return {"at": event.at, "event": event.name, **subject}


def _describe_account(account: Account) -> Line:
    """Its balance as of its last charge, and its settings."""
    return {
        "id": account.id,
        "balance": list(account.balance),
        "charge_rate": list(account.charge_rate),
        "max_charge_seconds": account.max_charge_seconds,
        "max_fanout": account.max_fanout,
        "per_label_task_limits": account.per_label_task_limits,
        "disable_free_tasks": account.disable_free_tasks,
        "description": account.description,
    }


def _describe_lease(owner: str, lease: Lease) -> Line:
    told: Line = {"reservation": owner, "component": lease.component, "level": lease.level, "cost": list(lease.cost)}
    told |= {} if lease.cores is None else {"cores": lease.cores}
    return told if lease.state == "held" else {**told, "state": lease.state}


def _sort_leases(reservations: Iterable[Reservation]) -> dict[tuple[str, int], list[tuple[str, Lease]]]:
    """Who holds what, by slot and epoch."""
    found: dict[tuple[str, int], list[tuple[str, Lease]]] = {}
    for row in reservations:
        for lease in row.leases:
            found.setdefault((lease.slot, lease.epoch), []).append((row.id, lease))
    return found


def _describe_slot(slot: Slot, leases: Iterable[tuple[str, Lease]], now: float) -> Line:
    """Costs are counted up to now."""
    kept = (
        "id",
        "pool",
        "state",
        "offering",
        "resources",
        "labels",
        "machine",
        "cordoned",
        "since",
        "idle_since",
    )
    told = [_describe_lease(owner, settle(lease, now)) for owner, lease in leases]
    return {**{name: getattr(slot, name) for name in kept}, "last_seen": slot.last_seen, "leases": told}


def _describe_reservation(row: Reservation) -> Line:
    kept = (
        *("id", "phase", "reason", "priority", "restarts", "created_at", "expires_at", "leased_at"),
        *("confirmed_at", "restarted_at", "finished_at"),
    )
    leases = [{"component": lease.component, "slot": lease.slot} for lease in row.leases]
    told = {name: getattr(row, name) for name in kept}
    return {**told, "component_restarts": row.component_restarts or {}, "leases": leases}
