"""One simulated process: the ports on adapters in memory, a clock that a test advances, and a fake cloud."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal
from uuid import uuid4

import msgspec

from scheduler.model.events import Event
from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Slot, list_batches
from scheduler.model.view import Row
from scheduler.operations.commands.intake import accept
from scheduler.operations.machines.check import check, recover, sweep
from scheduler.operations.machines.launch import launch
from scheduler.operations.machines.power import start_all, stop_all
from scheduler.operations.machines.reconcile import reconcile
from scheduler.operations.machines.terminate import terminate
from scheduler.operations.ports import Ports
from scheduler.operations.rules.apply import apply_rules
from scheduler.operations.tick.commit import PlannedRules
from scheduler.operations.tick.leader import Leader
from scheduler.operations.tick.tick import Ticked, tick
from scheduler.ports import CloudError, EventFilter, LaunchAnswer, LaunchOrder, OutboxMessage, Place, Refusal, Store
from scheduler.store.memory import MemoryStore
from scheduler.view.memory import (
    InMemoryRedis,
    LockHolder,
    MemoryHeartbeats,
    MemoryLeaderLock,
    MemoryMeter,
    MemoryNotifier,
    MemoryViewCache,
)

NOW = 1_000_000.0
CONFIG: dict[str, Any] = {
    "pools": {"linux": {"system": "x86_64-linux", "max_slots": 3, "lease_ttl": 0, "idle_scale_down": 300}}
}
Task = tuple[str, tuple[Any, ...]]


class CountingFleet:
    """A cloud whose machines run and are ready at once. The same launch request returns the same machine."""

    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {}
        self.hidden: set[str] = set()
        """Launched machines that the cloud does not list yet."""
        self.by_token: dict[str, str] = {}
        self.errors: list[CloudError] = []
        """The errors of the next launches, in order."""
        self.terminations: list[str] = []
        self.powered: list[tuple[str, ...]] = []
        """The calls that stopped, started or resized machines: the name of the call, then its arguments."""
        self.refused: dict[str, CloudError] = {}
        """Machine -> the error with which the cloud refuses to stop or start it."""
        self.protected: dict[str, CloudError] = {}
        """Machine -> the error with which the cloud refuses to terminate it."""
        self.answers: dict[str, LaunchAnswer] = {}
        """Client token -> the answer to the request of a batch."""
        self.most: int | None = None
        """The most machines that one request of a batch gets; None: all."""
        self.during_launch: Callable[[], object] = lambda: None

    @property
    def running(self) -> list[str]:
        """The machines that are not terminated."""
        return [name for name, machine in self.machines.items() if machine.state != "terminated"]

    def find_places(self, pool: str, rules: Rules) -> tuple[Place, ...]:
        return ()

    def freeze(self, order: LaunchOrder, rules: Rules) -> dict[str, Any]:
        """See Fleet. All offerings of the pool are one place."""
        token = f"batch-{order.batch}" if order.batch else f"{order.launch_id}/{order.generation}"
        return {"token": token, "order": msgspec.to_builtins(order), "offerings": order.offerings}

    def launch(self, request: Mapping[str, Any]) -> LaunchAnswer:
        """See Fleet. At most `most` machines of a batch are launched, with the last of the offerings."""
        if self.errors:
            raise self.errors.pop(0)
        order, token = request["order"], request["token"]
        if token not in self.answers:
            batch = order["batch"]
            count = order["count"] if self.most is None or not batch else min(self.most, order["count"])
            key = (order["offerings"] or [None])[-1]
            term, number = (order["highest"] or "0.0").split(".")
            own = {} if batch else {"slot": order["slot"], "launch_id": order["launch_id"]}
            machines: list[Machine] = []
            for _ in range(count):
                name = self.by_token.setdefault(f"{token}/{len(machines)}", f"i-{len(self.by_token) + 1}")
                machines.append(
                    Machine(
                        id=name,
                        state="running",
                        address="10.0.0.1",
                        pool=order["pool"],
                        batch=batch,
                        offering=key,
                        cluster_id=order["cluster_id"] or None,
                        highest_term=int(term),
                        highest_token=int(number),
                        **own,
                    )
                )
            self.machines |= {machine.id: machine for machine in machines}
            short = Refusal(offering=key, category="capacity", code="InsufficientInstanceCapacity")
            self.answers[token] = LaunchAnswer(
                machines=tuple(machines), refusals=() if count == order["count"] else (short,)
            )
        self.during_launch()
        answer = self.answers[token]
        return msgspec.structs.replace(answer, machines=tuple(self.machines[each.id] for each in answer.machines))

    def describe(self, machines: Sequence[str], *, checked: Collection[str] | None = None) -> dict[str, Machine]:
        shown = self.machines.keys() - self.hidden
        return {name: self.machines[name] for name in machines if name in shown}

    def find_launched(self, request: Mapping[str, Any]) -> list[Machine]:
        batch, own = request["order"]["batch"], request["order"]["launch_id"]
        return [each for each in self.sweep() if (each.batch == batch if batch else each.launch_id == own)]

    def sweep(self) -> Iterator[Machine]:
        return (self.machines[name] for name in self.running if name not in self.hidden)

    def appear(self, name: str, slot: str = "linux-1", **tags: Any) -> None:
        """Add a machine with the cluster's tags that no slot launched."""
        fields = {"state": "running", "pool": "linux", "launch_id": f"launch-of-{name}", **tags}
        self.machines[name] = Machine(id=name, slot=slot, **fields)

    def claim(self, machines: Sequence[str], cluster_id: str) -> dict[str, CloudError]:
        for name in machines:
            self.machines[name] = msgspec.structs.replace(self.machines[name], cluster_id=cluster_id)
        return {}

    def show_life(self, machines: Sequence[str], sign: str) -> dict[str, CloudError]:
        for name in machines:
            self.machines[name] = msgspec.structs.replace(self.machines[name], alive=sign)
        return {}

    def terminate(self, machines: Sequence[str]) -> dict[str, CloudError]:
        refused = find_refused(machines, self.protected)
        self.terminations += [name for name in machines if name not in refused]
        self._set_state([name for name in machines if name not in refused], "terminated")
        return refused

    def stop(self, machines: Sequence[str]) -> dict[str, CloudError]:
        return self._power("stop", machines, "stopped")

    def start(self, machines: Sequence[str]) -> dict[str, CloudError]:
        return self._power("start", machines, "running")

    def _power(self, call: str, machines: Sequence[str], state: Literal["stopped", "running"]) -> dict[str, CloudError]:
        self.powered.append((call, *machines))
        refused = find_refused(machines, self.refused)
        self._set_state([name for name in machines if name not in refused], state)
        return refused

    def _set_state(self, machines: Sequence[str], state: Literal["stopped", "running", "terminated"]) -> None:
        for name in machines:
            if name in self.machines and self.machines[name].state != "terminated":
                self.machines[name] = msgspec.structs.replace(self.machines[name], state=state)

    def resize(self, machine: str, instance_type: str) -> None:
        self.powered.append(("resize", machine, instance_type))
        self.machines[machine] = msgspec.structs.replace(self.machines[machine], type=instance_type)

    def is_ready(self, slot: Slot, machine: Machine, rules: Rules) -> bool:
        return machine.state == "running"


def find_refused(machines: Sequence[str], errors: Mapping[str, CloudError]) -> dict[str, CloudError]:
    """Return the machines of a call that are refused, by the errors of single machines. Raises an error that concerns
    the whole call.
    """
    refused = {name: errors[name] for name in machines if name in errors}
    if whole := next((each for each in refused.values() if not each.may_concern_one), None):
        raise whole
    return refused


@dataclass
class Mailbox:
    """The broker: messages are kept here until a test runs their tasks."""

    tasks: list[Task] = field(default_factory=list)
    callbacks: list[OutboxMessage] = field(default_factory=list)
    due: float | None = None

    def send_launches(self, slots: Sequence[Slot]) -> None:
        self.tasks += [("launch_batch", (batch,)) for batch in list_batches(slots)]
        self.tasks += [("launch", (slot.id, slot.launch_id)) for slot in slots if slot.batch is None]

    def send_terminations(self, slots: Sequence[Slot]) -> None:
        self.tasks += [("terminate", (slot.id, slot.epoch)) for slot in slots]

    def send_power(self, slots: Sequence[Slot]) -> None:
        for power in ("start", "stop"):
            if pairs := [(slot.id, slot.epoch) for slot in slots if slot.power == power]:
                self.tasks.append((power, (pairs,)))

    def send_checks(self, slots: Sequence[str]) -> None:
        self.tasks.append(("check", (list(slots),)))

    def send_callback(self, outgoing: OutboxMessage) -> None:
        self.callbacks.append(outgoing)

    def wake_at(self, due: float | None, now: float) -> None:
        self.due = due


TASKS: dict[str, Callable[..., object]] = {
    "launch": lambda ports, slot_id, launch_id: launch(ports, launch_id, slot_id),
    "launch_batch": launch,
    "terminate": terminate,
    "start": start_all,
    "stop": stop_all,
    "check": check,
}


class Harness:
    """One fleet and one process that manages it; `restart` replaces the process by a new one.

    `store`: the database (default: one in memory whose time is `now`).
    """

    def __init__(
        self,
        config: dict[str, Any] | None = None,
        *,
        store: Store | None = None,
        fleet: "CountingFleet | None" = None,
        redis: InMemoryRedis | None = None,
    ) -> None:
        self.now = NOW if store is None else store.now()
        self.store: Store = MemoryStore(self.clock) if store is None else store
        self.fleet = fleet or CountingFleet()
        self.mailbox = Mailbox()
        self.redis, self.lock_holder, self.numbers = redis or InMemoryRedis(self.clock), LockHolder(), count(1)
        self.heartbeats = MemoryHeartbeats(self.clock)
        self.restart()
        apply_rules(self.ports, config or CONFIG)

    def clock(self) -> float:
        """Return the time, which passes only when a test changes `now`."""
        return self.now

    def restart(self) -> None:
        """Replace the process: the new one has no leadership, no copy of the view and no rules in memory."""
        self.notifier = MemoryNotifier(clock=self.clock)
        self.meter = MemoryMeter()
        self.ports = Ports(
            store=self.store,
            view_cache=MemoryViewCache(self.redis, self.clock),
            lock=MemoryLeaderLock(self.lock_holder, 15.0, self.clock, self.notifier.hear),
            notifier=self.notifier,
            heartbeats=self.heartbeats,
            dispatcher=self.mailbox,
            meter=self.meter,
            fleet=self.fleet,
            probe=self.fleet,
            new_id=lambda: uuid4().hex,
        )
        self.leader = Leader(holder=f"process-{next(self.numbers)}", clock=self.clock)

    def ask(self, verb: str, **document: Any) -> dict[str, Any]:
        """Send a request (default: with a new request id) and return the answer."""
        return accept(self.ports, verb, {"request": uuid4().hex} | document)

    def submit(self, name: str, **fields: Any) -> dict[str, Any]:
        """Submit a reservation with one instance and return the answer."""
        return self.ask("submit", id=name, system="x86_64-linux", **fields)

    def tick(self) -> Ticked:
        """Run one tick and return what it did."""
        return tick(self.ports, self.leader)[0]

    def play_tasks(self) -> None:
        """Run the tasks of all messages, also of those that the tasks send."""
        while self.mailbox.tasks:
            name, arguments = self.mailbox.tasks.pop(0)
            TASKS[name](self.ports, *arguments)

    def play_tasks_of(self, kind: str) -> None:
        """Run the tasks of one kind. All other messages, and those that the tasks send, are lost."""
        waiting, self.mailbox.tasks = self.mailbox.tasks, []
        for name, arguments in waiting:
            if name == kind:
                TASKS[name](self.ports, *arguments)
        self.mailbox.tasks.clear()

    def settle(self, seconds: float = 60.0, step: float = 2.0) -> None:
        """Run the periodic jobs for this number of seconds."""
        end = self.now + seconds
        while self.now < end:
            self.now += step
            for job in self.jobs():
                job()

    @property
    def events(self) -> list[Event]:
        """All events, oldest first."""
        return self.store.read_events(EventFilter(limit=100_000))

    def jobs(self) -> list[Callable[[], object]]:
        ports = self.ports
        return [
            lambda: tick(ports, self.leader),
            lambda: recover(ports),
            lambda: sweep(ports, all_machines=True),
            lambda: reconcile(ports),
            self.play_tasks,
        ]

    def slot(self, name: str = "linux-1") -> Slot:
        return self.store.find_slots(ids=[name])[0]

    def put(self, *rows: Row) -> None:
        """Write rows to the database and the view, for states that take many steps to reach."""
        with self.store.transaction() as transaction:
            saved = transaction.save(rows)
        self.ports.view_cache.publish(saved)

    @property
    def planned_rules(self) -> PlannedRules:
        """The rules in force, for decisions that a test commits without a plan."""
        return PlannedRules(self.ports.rules(), self.store.rules_version())

    def phase(self, name: str = "r1") -> str:
        return self.store.find_reservations(ids=[name])[0].phase

    def token(self, name: str = "r1") -> int:
        """Return the current token of a reservation."""
        return self.store.find_reservations(ids=[name])[0].token

    def leased(self, name: str = "r1") -> "Harness":
        """Submit a reservation and run until it has a lease on its own machine."""
        self.submit(name)
        self.tick()
        self.play_tasks()
        self.tick()
        assert self.phase(name) == "leased"
        return self
