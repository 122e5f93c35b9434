"""Runs a scenario on the virtual clock and yields what happens, line by line: JSON lines for programs, sentences and a
table for users.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from scheduler.model.accounts import PAID
from scheduler.model.decisions import Claim, describe_decision
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.run_times import RunTimes
from scheduler.model.slots import Slot, slot_order
from scheduler.model.validation import Document
from scheduler.model.view import View
from scheduler.operations.change_set import STOP_DONE
from scheduler.operations.commands import slot_commands
from scheduler.operations.commands.intake import carry_out, load_rows
from scheduler.operations.commands.reports import REPORT_COMMANDS
from scheduler.operations.commands.slot_commands import register
from scheduler.operations.explain import explain_wait, find_applied
from scheduler.operations.machines.reconcile import reconcile
from scheduler.operations.ports import announce
from scheduler.operations.tick.tick import Ticked
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.quota.accounting import settle
from scheduler.protocol.visible import escape_json, make_visible
from scheduler.simulation.cloud_documents import FoundDocument
from scheduler.simulation.cluster import (
    SimulatedCluster,
    apply_simulated,
    build_cluster,
    count_released,
    put_absent_host,
    put_reservations,
    put_slot,
    submit_all,
)
from scheduler.simulation.loop import EventLoop, Holders, Interruptions, announce_change, interrupt_slot, lose_slot
from scheduler.simulation.metrics import Bill
from scheduler.simulation.scenario import (
    RESERVATION_HISTORY,
    Scenario,
    Step,
    list_history,
    load_scenario,
    make_document,
)
from scheduler.simulation.timeline import Timeline, TimelineRecorder

Line = dict[str, Any]
PRINTED = frozenset(
    {
        *(f"slot_{state}" for state in ("launching", "booting", "binding", "ready", "draining")),
        *(f"slot_{state}" for state in ("terminating", "empty", "error", "adopted", "stopped")),
        STOP_DONE,
        "register_refused",
        "reservation_submitted",
        *(f"reservation_{phase}" for phase in ("leased", "revoking", "released", "cancelled")),
        *(f"reservation_{phase}" for phase in ("expired", "failed", "pending")),
    }
)
"""The names of the events that a run of a scenario prints; other events are not printed."""


def play(scenario: Scenario) -> Iterator[Line]:
    """Run a scenario and yield one line (a JSON object) for each tick and each other change of state, and the final
    state as the last line.
    """
    yield from Runner(scenario).play()


class Runner:
    """Runs one scenario step by step. At each time of the virtual clock it runs first the due callbacks of machines and
    holders, then the timeline actions, then the requested ticks.
    """

    def __init__(self, scenario: Scenario, *, records: bool = False) -> None:
        self._scenario = scenario
        self.cluster: SimulatedCluster = build_cluster(scenario.config, scenario.cloud)
        self.cluster.ports.time_zero = scenario.starts_at
        self._holders = Holders(self.cluster)
        self._interruptions = Interruptions(self.cluster, is_trace=False)
        self._bill = Bill(self.cluster) if scenario.cloud.market.is_on else None
        self._seen = len(self.cluster.store.events)
        self._recorder: TimelineRecorder | None = None
        self._loop = EventLoop(
            self.cluster, self._process_events, self._on_tick, kicks=scenario.kicks, wakes=scenario.wakes
        )
        self._next_tick, self._periods = 0.0 if scenario.tick_every else inf, 0
        self._lines: list[Line] = []
        put_reservations(self.cluster, scenario.reservations)
        for slot in scenario.slots:
            put_slot(self.cluster, slot)
        for row in self.cluster.store.find_reservations(limit=len(scenario.reservations) or 1):
            self._holders.watch(row)
        _restore(self.cluster, scenario)
        self.cluster.notifier.hear()
        self._process_events()
        self._lines.clear()
        self._recorder = TimelineRecorder(self.cluster) if records else None

    def play(self) -> Iterator[Line]:
        """Run the scenario to its end and yield its lines as they occur, with the final state as the last line."""
        steps = deque(self._scenario.timeline)
        end = max(self._scenario.until, steps[-1].at if steps else 0.0)
        while True:
            now = min(steps[0].at if steps else inf, self._loop.next_instant(), self._next_tick)
            if now > end:
                break
            self._move_to(now)
            self._loop.run_due()
            while steps and steps[0].at <= now:
                step = steps.popleft()
                if step.action == "tick":
                    self._loop.tick(partial(self._act_all, step.value))
                else:
                    self._act_all([step])
                    self._loop.run_due()
            every, is_due = self._scenario.tick_every, now >= self._next_tick
            if every is not None and is_due:
                self._periods += 1
                self._next_tick = round(self._periods * every, 9)  # 3 × 0.7 is less than 2.1
            self._loop.tick_until_quiet(is_due=is_due)
            lines, self._lines = self._lines, []
            yield from lines
        self._move_to(end)
        yield self._describe_state()

    @property
    def ticks(self) -> int:
        return self._loop.ticks

    def finish_timeline(self) -> Timeline | None:
        """Return the timeline of the run so far; None if the run does not record it."""
        return None if self._recorder is None else self._recorder.finish()

    def _move_to(self, now: float) -> None:
        self.cluster.event_queue.now = now
        if self._recorder is not None:
            self._recorder.advance(now)

    def _process_events(self) -> bool:
        """Print the events that the store has recorded since the last call, and let the simulated holders of leases
        react to them. Return whether there were any.
        """
        events = self.cluster.store.events[self._seen :]
        self._seen += len(events)
        for event in events:
            if event.name in PRINTED:
                subject = {"slot": event.slot} if event.slot else {"reservation": event.reservation}
                self._lines.append({"at": event.at, "event": event.name, **subject})
        if self._recorder is not None:
            for event in events:
                self._recorder.note_event(event)
            for slot in dict.fromkeys(event.slot for event in events if event.slot):
                self._recorder.note_slot(self.cluster.find_slot(slot), slot)
        for event in events if self._bill is not None else ():
            self._note_machine(event)
        names = dict.fromkeys(event.reservation for event in events if event.reservation)
        if names:
            rows = self.cluster.store.find_reservations(ids=list(names), limit=len(names))
            count_released(self.cluster, events, rows)
            for row in rows:
                if self._recorder is not None:
                    self._recorder.note_reservation(row)
                self._holders.watch(row)
        return bool(events)

    def _note_machine(self, event: Event) -> None:
        """Update the bill after the event of a slot. If the event is the launch of a spot machine, schedule its random
        interruption.
        """
        slot = self.cluster.find_slot(event.slot) if event.slot else None
        if self._bill is not None and event.slot:
            self._bill.note_slot(slot, event.slot)
        if slot is not None and event.name == "slot_booting":
            self._interruptions.note_machine(slot)

    def _on_tick(self, ticked: Ticked) -> None:
        self._lines.append(self._describe_tick(ticked))

    def _describe_tick(self, ticked: Ticked) -> Line:
        reasons = {id(each.decision): each.reason for each in ticked.skipped}
        decisions = []
        for decision in ticked.plan.decisions:
            if isinstance(decision, Claim):
                continue  # Of a claim only the revokes are printed, and later the assignment.
            line = describe_decision(decision)
            if id(decision) in reasons:
                line["skipped"] = reasons[id(decision)]
            decisions.append(line)
        waiting = [msgspec.to_builtins(each) for each in ticked.plan.waiting]
        if self._recorder is not None:
            self._recorder.note_codes({each["reservation"]: each["code"] for each in waiting})
        return {"at": ticked.now, "tick": self._loop.ticks, "decisions": decisions, "waiting": waiting}

    def _act_all(self, steps: Iterable[Step]) -> None:
        for step in steps:
            self._act(step)

    def _act(self, step: Step) -> None:
        """Carry out one action of the timeline. Actions in MAY_BE_UNKNOWN have no effect for an unknown id."""
        cluster, value = self.cluster, step.value
        match step.action:
            case "submit":
                submit_all(cluster, value)
            case "slot":
                put_slot(cluster, value)
            case "cordon":
                put_absent_host(cluster, value)
                self._command(step.action, make_document(step.action, value))
            case "rules":
                apply_simulated(cluster.ports, value, prefix=step.path)
            case "outage":
                cluster.cloud.outages.append(value)
            case "register":
                rules = cluster.ports.rules()
                self._change(lambda work: register(work, rules, value), kick_for_marks=True, slots=[value.slot])
            case "remove":
                self._change(lambda work: _remove(work, value), slots=[value])
            case "interrupt" | "rebalance" | "maintain" | "lose" | "found":
                self._act_as_cloud(step.action, value)
            case "seen":
                self._change(lambda work: slot_commands.hear(work, value), slots=[value])
            case _:
                self._command(step.action, make_document(step.action, value))

    def _act_as_cloud(self, action: str, value: Any) -> None:
        """Carry out a timeline action of the cloud: an announcement about a machine, the loss of a machine, or a
        machine that no slot has launched.
        """
        match action:
            case "interrupt":
                interrupt_slot(self.cluster, value.slot, value.deadline)
            case "rebalance":
                rules = self.cluster.ports.rules()
                self._change(lambda work: slot_commands.rebalance(work, rules, value), slots=[value])
            case "maintain":
                announce_change(self.cluster, value.slot, value.begins_in, value.code)
            case "lose":
                lose_slot(self.cluster, value)
            case _:
                self._find(value)

    def _command(self, verb: str, document: Document) -> None:
        """Carry out a command of the timeline as an operator, as workers do in production. A refused command changes
        nothing. `verb`: the name of the command, such as `release`.
        """
        rules = self.cluster.ports.rules()
        self.cluster.change(
            lambda work: carry_out(work, rules, verb, document),
            lambda work: load_rows(work, rules, [(verb, document)]),
            kick_for_marks=verb in REPORT_COMMANDS,
        )

    def _change(self, act: Callable[[UnitOfWork], object], *, kick_for_marks: bool = False, slots: list[str]) -> None:
        self.cluster.change(act, lambda work: work.load(slots=slots), kick_for_marks=kick_for_marks)

    def _find(self, found: FoundDocument) -> None:
        """Create a machine that no slot has launched, and compare EC2's machines with the slots now.

        If this comparison terminates the machine, a second comparison is scheduled for the time when the machine is
        gone.
        """
        cluster = self.cluster
        cluster.cloud.find(found.pool, found.slot, found.offering)
        if reconcile(cluster.ports).strangers:
            gone_at = cluster.event_queue.now + cluster.cloud.delays.terminate
            cluster.event_queue.note(gone_at, lambda: reconcile(cluster.ports))

    def _describe_state(self) -> Line:
        store = self.cluster.store
        pools = list(self.cluster.ports.rules().pools)
        slots = sorted(
            store.find_slots(),
            key=lambda slot: (
                pools.index(slot.pool) if slot.pool in pools else len(pools),
                slot_order(slot.id),
            ),
        )
        reservations, now = store.find_reservations(limit=2**31), self.cluster.event_queue.now
        leases: dict[tuple[str, int], list[tuple[str, Lease]]] = {}
        for row in reservations:
            for lease in row.leases:
                leases.setdefault((lease.slot, lease.epoch), []).append((row.id, lease))
        state = {
            "slots": [_describe_slot(slot, leases.get((slot.id, slot.epoch), ()), now) for slot in slots],
            "reservations": [_describe_reservation(row) for row in reservations],
            "accounts": [
                {
                    "id": row.id,
                    "balance": list(row.balance),
                    "charge_rate": list(row.charge_rate),
                    "max_charge_seconds": row.max_charge_seconds,
                    "max_fanout": row.max_fanout,
                    "per_label_task_limits": row.per_label_task_limits,
                    "disable_free_tasks": row.disable_free_tasks,
                    "description": row.description,
                    **({"enforce_max_runtime": True} if row.enforce_max_runtime else {}),
                }
                for row in store.find_accounts()
                if not row.forgotten
            ],
        }
        if self._bill is not None:
            state["bill"] = list(map(msgspec.to_builtins, self._bill.list_lines()))
        return {"at": now, "state": state}


def _restore(cluster: SimulatedCluster, scenario: Scenario) -> None:
    """Insert the scenario's launch back-offs (holds) and run times. Set the fields about the past that its reservation
    records contain, such as the number of restarts.
    """
    history = {each.id: found for each in scenario.reservations if (found := list_history(each, RESERVATION_HISTORY))}
    if not (history or scenario.holds or scenario.run_times):
        return
    with cluster.store.transaction() as transaction:
        work = UnitOfWork(transaction, "operator")
        work.load(reservations=history)
        for name, fields in history.items():
            if name in work.reservations:
                work.put(msgspec.structs.replace(work.reservations[name], **fields))
        for given in scenario.holds:
            subject = given.subject if given.kind != "unhealthy" else ""
            work.put(Hold(id=hold_id(given.pool, given.kind, subject), **given.model_dump()))
        for each in scenario.run_times:
            work.put(RunTimes(id=each.name, seconds=each.seconds, ratios=each.ratios))
        change_set = work.flush()
    announce(cluster.ports, change_set, kick=False)


def _remove(work: UnitOfWork, name: str) -> None:
    slot = work.slots.get(name)
    if slot is not None:
        work.delete(slot)
        work.note("slot_removed", cause="operator", slot=name)


def _describe_lease(owner: str, lease: Lease) -> Line:
    line: Line = {"reservation": owner, "component": lease.component, "level": lease.level, "cost": list(lease.cost)}
    line |= {} if lease.cores is None else {"cores": lease.cores}
    return {**line, "state": lease.state} if lease.state == "revoking" else line


def _describe_slot(slot: Slot, leases: Sequence[tuple[str, Lease]], now: float) -> Line:
    """Return the line of a slot in the final state: its fields, and its leases with their costs up to now.

    A claim is no lease yet, so claims are listed under `claims`, if the slot has any.
    """
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
    lines = [_describe_lease(owner, settle(lease, now)) for owner, lease in leases]
    fields = {**{name: getattr(slot, name) for name in kept}, "last_seen": slot.last_seen}
    return fields | _without_claims(lines, [lease for _, lease in leases])


def _describe_reservation(row: Reservation) -> Line:
    kept = (
        *("id", "phase", "reason", "priority", "restarts", "created_at", "expires_at", "leased_at"),
        *("confirmed_at", "restarted_at", "finished_at"),
    )
    lines = [{"component": lease.component, "slot": lease.slot} for lease in row.leases]
    fields = {name: getattr(row, name) for name in kept}
    return {**fields, "component_restarts": row.component_restarts or {}} | _without_claims(lines, row.leases)


def _without_claims(lines: Iterable[Line], leases: Iterable[Lease]) -> Line:
    """Return {"leases": lines, "claims": lines}. Each of `lines` describes the lease at the same position in `leases`.
    Lines of claims are under `claims`, and all others under `leases`. If there are no claims, the key `claims` is
    missing.
    """
    pairs = list(zip(lines, leases, strict=True))
    claims = [line for line, lease in pairs if lease.state == "claimed"]
    held = [line for line, lease in pairs if lease.state != "claimed"]
    return {"leases": held, **({"claims": claims} if claims else {})}


MOST_EXPLAINED: Final = 20
"""The most waiting reservations that are explained at the end of a scenario's run."""
DECIMALS_FOR_PEOPLE: Final = 6
"""Decimals of times in sentences about a run. JSON lines have all decimals, for example 180.00000000000003 for an event
strictly after 180 s, because programs compare the lines with another run.
"""


def run_file(path: Path, *, json_lines: bool, out: TextIO, records: bool = False) -> Runner:
    """Run a scenario file and print its decisions to `out`, as JSON lines or as sentences. Return the finished Runner;
    with `records`, it has the timeline of the run.

    Raises InvalidInputError if the file has any fault; then nothing ran and nothing was printed.
    """
    player = Runner(load_scenario(path), records=records)
    for line in player.play():
        texts = [escape_json(json.dumps(tidy(line), ensure_ascii=False))] if json_lines else describe_line(line)
        for text in texts:
            print(make_visible(text), file=out)
    if not json_lines:
        for text in describe_waits(player.cluster):
            print(make_visible(text), file=out)
    return player


def describe_waits(cluster: SimulatedCluster) -> Iterator[str]:
    """Yield a sentence for each of the first MOST_EXPLAINED waiting reservations: the reason, and the smallest change
    that would end the wait.
    """
    now, applied = cluster.event_queue.now, find_applied(cluster.ports)
    rules = cluster.ports.rules_at(now).rules
    waiting = cluster.store.find_reservations(phases=["pending"], limit=MOST_EXPLAINED + 1)
    if waiting:
        yield ""
    for row in waiting[:MOST_EXPLAINED]:
        found = explain_wait(View(cluster.store.read_rows()), rules, row, now, applied=applied)
        why = found["waiting"]["code"] if found["waiting"] else "nothing: the next tick serves it"
        change = f"; smallest change: {found['change']['text']}" if found["change"] else ""
        needs = f"; needs {'; '.join(found['needs'])}" if found["needs"] else ""
        yield f"{row.id} waits: {why}{change}{needs}"
    if len(waiting) > MOST_EXPLAINED:
        yield "and other reservations wait"


def tidy(value: Any, decimals: int | None = None) -> Any:
    """Return the value, and values within it, with whole floats as integers (70 instead of 70.0). Other floats are
    rounded to `decimals`, or kept if it is None.
    """
    if isinstance(value, float):
        rounded = value if decimals is None else round(value, decimals)
        return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded
    if isinstance(value, dict):
        return {name: tidy(each, decimals) for name, each in value.items()}
    return [tidy(each, decimals) for each in value] if isinstance(value, list) else value


def describe_line(line: Line) -> Iterator[str]:
    """Yield the sentences for one line of a simulated run: a tick, an event, or the final state (as a table)."""
    line = tidy(line, DECIMALS_FOR_PEOPLE)
    at = f"{line['at']:>10} s"
    if "event" in line:
        yield f"{at}  {line.get('slot') or line.get('reservation')}: {line['event'].replace('_', ' ')}"
    elif "tick" in line:
        yield f"{at}  tick {line['tick']}" + ("" if line["decisions"] or line["waiting"] else ": nothing to do")
        for decision in line["decisions"]:
            yield f"{'':12}  {format_decision(decision)}"
        for each in line["waiting"]:
            yield f"{'':12}  {each['reservation']} waits: {each['code']} ({each['detail']})"
    else:
        yield ""
        yield from _describe_state(line["state"], line["at"])


def format_decision(decision: dict[str, Any]) -> str:
    """Return a decision of a tick, as `leasehold simulate` prints it, as one line of text for people."""
    fields = {name: value for name, value in decision.items() if name not in {"do", "skipped"} and value is not None}
    if "leases" in fields:
        fields["leases"] = ", ".join(f"{each['component']} on {each['slot']}" for each in fields["leases"])
    if "victims" in fields:
        fields["victims"] = ", ".join(fields["victims"])
    text = f"{decision['do']} " + ", ".join(f"{name} {value}" for name, value in fields.items())
    return f"{text} (skipped: {decision['skipped']})" if "skipped" in decision else text


def _describe_state(state: dict[str, Any], at: float) -> Iterator[str]:
    yield f"At {at} s:"
    rows = [
        (slot["id"], slot["state"], ", ".join(map(_describe_printed_lease, slot["leases"])) or "-")
        for slot in state["slots"]
    ]
    yield from _describe_table(("SLOT", "STATE", "LEASES"), rows)
    yield ""
    rows = [
        (each["id"], each["phase"], ", ".join(lease["slot"] for lease in each["leases"]) or each["reason"] or "-")
        for each in state["reservations"]
    ]
    yield from _describe_table(("RESERVATION", "PHASE", "SLOTS"), rows)
    if state.get("bill"):
        yield ""
        bill = [
            (each["pool"], each["offering"], each["market"], *(f"{each['hours']:.2f}", f"{each['dollars']:.4f}"))
            for each in state["bill"]
        ]
        yield from _describe_table(("POOL", "OFFERING", "MARKET", "HOURS", "DOLLARS"), bill)
    if state["accounts"]:
        yield ""
        balances = ((each["id"], each["balance"]) for each in state["accounts"])
        lines = [(name, " ".join(f"{amount:.6g}" for amount in balance)) for name, balance in balances]
        yield from _describe_table(("ACCOUNT", "BALANCE BY LEVEL"), lines)


def _describe_printed_lease(lease: dict[str, Any]) -> str:
    level = f" (level {lease['level']})" if lease["level"] in PAID else ""
    return f"{lease['reservation']}{level}"


def _describe_table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table. A column without any value is left out."""
    shown = [column for column in range(len(heads)) if not rows or any(row[column] not in {"", "-"} for row in rows)]
    heads, rows = _take(heads, shown), [_take(row, shown) for row in rows]
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    for row in [heads, *rows]:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _take(row: tuple[str, ...], columns: Sequence[int]) -> tuple[str, ...]:
    return tuple(row[column] for column in columns)
