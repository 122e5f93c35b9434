"""The virtual clock, and the simulated cloud: machines with delays and refused launches behind the ports of EC2.

The dispatcher runs the slow tasks of workers on the virtual clock: launches, starts, stops, terminations and checks.
The view cache has only one copy of the rows, because the same process publishes and reads.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any

import msgspec
from typing_extensions import override

from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Slot
from scheduler.model.transitions import UNPAID
from scheduler.model.view import Change, Row, View
from scheduler.operations.machines.check import check
from scheduler.operations.machines.launch import launch
from scheduler.operations.machines.power import start_all, stop_all
from scheduler.operations.machines.terminate import terminate
from scheduler.operations.ports import Ports
from scheduler.ports import (
    Category,
    CloudError,
    Dispatcher,
    Fleet,
    LaunchAnswer,
    LaunchOrder,
    OutboxMessage,
    Place,
    Probe,
    ViewCache,
)
from scheduler.simulation.cloud_documents import CloudDocument, OutageDocument, PlannedOutage
from scheduler.simulation.market import SimulatedMarket
from scheduler.view.memory import MemoryViewCache

SHOWN_SECONDS = 3600.0
"""Seconds for which the simulated cloud still lists a terminated machine, about as long as EC2. Later requests do not
find the machine.
"""


class EventQueue:
    """The virtual clock of a simulation, and the callbacks that are scheduled on it. Callbacks for the same time run in
    the order in which they were added.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    def note(self, at: float, callback: Callable[[], object]) -> None:
        """Schedule `callback` for the time `at` on the virtual clock; a time in the past counts as now."""
        heappush(self._due, (max(at, self.now), next(self._numbers), callback))

    @property
    def next_at(self) -> float:
        """Return the time of the next scheduled callback; infinity when there is none."""
        return self._due[0][0] if self._due else inf

    def run_due(self) -> None:
        """Run all callbacks whose time has come, including callbacks that they schedule for now."""
        while self._due and self._due[0][0] <= self.now:
            heappop(self._due)[2]()


@dataclass
class _Machine:
    """A simulated machine with the times when it runs, serves and is gone (seconds on the virtual clock)."""

    slot: str
    launch_id: str
    runs_at: float
    serves_at: float
    gone_at: float = inf
    stopped_at: float = inf
    """Time at which the machine is stopped; infinity: no stop is under way."""
    pool: str | None = None
    offering: str | None = None


class SimulatedCloud(Fleet, Probe):
    """The ports Fleet (EC2's machines) and Probe (whether a machine serves) in a simulation: machines that exist only
    on the virtual clock.
    """

    def __init__(self, event_queue: EventQueue, delays: CloudDocument) -> None:
        self._event_queue, self.delays = event_queue, delays
        self._machines: dict[str, _Machine] = {}
        self._launched: dict[str, str] = {}
        """Launch id -> the machine that this launch created."""
        self._strangers = count(1)
        self.verdicts: dict[str, Category] = {}
        """Name of a request under way (see `find_request`) -> the reason for which the simulated
        cloud will refuse it.
        """
        self._gangs: dict[str, list[Slot]] = {}
        """Id of a gang's batch whose launch is under way -> the slots of the batch as they were planned."""
        self.outages: list[OutageDocument] = list(delays.outages)
        self.calls = 0
        self.market: SimulatedMarket | None = None
        """The market; None if the simulation has none."""

    def judge(self, slots: Sequence[Slot], machines: int, rules: Rules) -> None:
        """Decide for the launch or start of each of these slots whether the cloud refuses it: because of an outage, a
        shortage of the market or the quota. `verdicts` keeps the reason.

        The batch of a gang is one request: all its machines are launched, or none is. `machines`: the number of
        machines before these launches, without the stopped ones.
        """
        requests: dict[str, list[Slot]] = {}
        for slot in slots:
            requests.setdefault(find_request(slot), []).append(slot)
        for name, (slot, *others) in requests.items():
            verdict, count = self._find_outage(slot), 1 + len(others)
            if verdict is None and self.market is not None and self.market.refuses(slot, rules, self._event_queue.now):
                verdict = "capacity"
            if verdict is None and self.delays.quota is not None and machines + count > self.delays.quota:
                verdict = "quota"
            if verdict is None:
                machines += count
            else:
                self.verdicts[name] = verdict
            if is_gang(slot):
                self._gangs[name] = [slot, *others]

    def forget_request(self, name: str) -> None:
        """Forget what `judge` has decided about a request with this name, because the request was answered or is not
        wanted any more.
        """
        self.verdicts.pop(name, None)
        self._gangs.pop(name, None)

    @property
    def refused(self) -> int:
        """The number of machines in requests that will be refused and are not answered yet."""
        return sum(len(self._gangs.get(name, [name])) for name in self.verdicts)

    def _find_outage(self, slot: Slot) -> Category | None:
        for outage in self.outages:
            names = (None, slot.offering, (slot.offering or "").split("/")[0])
            begins = outage.at if isinstance(outage, PlannedOutage) else 0.0
            if outage.pool == slot.pool and outage.offering in names and begins <= self._event_queue.now < outage.until:
                return outage.error
        return None

    @override
    def find_places(self, pool: str, rules: Rules) -> tuple[Place, ...]:
        return ()

    @override
    def freeze(self, order: LaunchOrder, rules: Rules) -> dict[str, Any]:
        assert order.pool in rules.pools, "a launch is decided for a pool of the rules"  # noqa: S101
        return msgspec.to_builtins(order)  # type: ignore[no-any-return]

    @override
    def launch(self, request: Mapping[str, Any]) -> LaunchAnswer:
        self.calls += 1
        own, batch = request["launch_id"], request["batch"]
        verdict = self.verdicts.pop(batch or own, None)
        offering = self._gangs[batch][0].offering if batch else next(iter(request["offerings"]), None)
        if verdict is not None:
            error = CloudError(verdict, verdict, "the simulated cloud refuses this launch: outage, shortage or quota")
            if verdict not in {"capacity", "quota", "misconfigured"}:
                raise error
            return LaunchAnswer(machines=(), refusals=(error.refuse(offering),))
        runs_at = self._event_queue.now + self.delays.boot
        names = [f"i-{batch}-{number}" for number in range(request["count"])] if batch else [f"i-{own}"]
        for name in names:
            if not batch or name not in self._machines:
                self.put(name, request["slot"], name.removeprefix("i-"), runs_at, runs_at + self.delays.bind)
                self._machines[name].offering = offering if batch else None
        return LaunchAnswer(machines=tuple(map(self._describe, names)))

    def put(self, name: str, slot: str, launch_id: str, runs_at: float, serves_at: float) -> None:
        """Create the machine with the id `name`, with the ids of its slot and launch as tags. It runs from `runs_at`
        and serves from `serves_at`.
        """
        self._machines[name] = _Machine(slot, launch_id, runs_at, serves_at)
        self._launched[launch_id] = name

    def find(self, pool: str, slot: str, offering: str | None) -> None:
        """Create a machine that has the cluster's tags but that no slot has launched, so that the scheduler has to find
        it. `pool`, `slot`, `offering`: its tags.
        """
        runs_at = self._event_queue.now + self.delays.boot
        name = f"found-{next(self._strangers)}"
        self.put(f"i-{name}", slot, name, runs_at, runs_at + self.delays.bind)
        machine = self._machines[f"i-{name}"]
        machine.pool, machine.offering = pool, offering

    @override
    def describe(self, machines: Sequence[str], *, checked: Collection[str] | None = None) -> dict[str, Machine]:
        return {name: self._describe(name) for name in machines if name in self._machines}

    def _describe(self, name: str) -> Machine:
        machine, now = self._machines[name], self._event_queue.now
        state = "terminated" if now >= machine.gone_at else "running" if now >= machine.runs_at else "pending"
        if machine.stopped_at < inf and state != "terminated":
            state = "stopped" if now >= machine.stopped_at else "stopping"
        return Machine(
            id=name,
            state=state,  # type: ignore[arg-type]
            slot=machine.slot,
            pool=machine.pool,
            launch_id=machine.launch_id,
            offering=machine.offering,
        )

    @override
    def find_launched(self, request: Mapping[str, Any]) -> list[Machine]:
        batch, own = request["batch"], f"i-{request['launch_id']}"
        return [each for each in self.sweep() if (each.id.startswith(f"i-{batch}-") if batch else each.id == own)]

    @override
    def sweep(self) -> Iterator[Machine]:
        return (found for name in self._machines if (found := self._describe(name)).state != "terminated")

    @override
    def claim(self, machines: Sequence[str], cluster_id: str) -> dict[str, CloudError]:
        # A simulation has only one cluster.
        return {}

    @override
    def show_life(self, machines: Sequence[str], sign: str) -> dict[str, CloudError]:
        # Do nothing, as `claim`.
        return {}

    @override
    def terminate(self, machines: Sequence[str]) -> dict[str, CloudError]:
        for name in machines:
            if name in self._machines:
                self.end(name, self._event_queue.now + self.delays.terminate)
        return {}

    @override
    def stop(self, machines: Sequence[str]) -> dict[str, CloudError]:
        for name in machines:
            if name in self._machines and self._machines[name].stopped_at == inf:
                self._machines[name].stopped_at = self._event_queue.now + self.delays.stop
        return {}

    def put_stopped(self, name: str) -> None:
        self._machines[name].stopped_at = self._event_queue.now

    @override
    def start(self, machines: Sequence[str]) -> dict[str, CloudError]:
        self.calls += 1
        refused: dict[str, CloudError] = {}
        for name in machines:
            if (verdict := self.verdicts.pop(name, None)) is not None:
                reason = "the simulated cloud refuses this start: outage, shortage or quota"
                refused[name] = CloudError(verdict, verdict, reason)
            elif name in self._machines and self._machines[name].stopped_at <= self._event_queue.now:
                machine = self._machines[name]
                machine.stopped_at, machine.runs_at = inf, self._event_queue.now + self.delays.start
                machine.serves_at = machine.runs_at + self.delays.bind
        if error := next((each for each in refused.values() if not each.may_concern_one), None):
            raise error
        return refused

    @override
    def resize(self, machine: str, instance_type: str) -> None:
        # Simulated machines have no instance type.
        pass

    def end(self, name: str, gone_at: float) -> None:
        """End the machine at the time `gone_at`, unless it ends earlier anyway."""
        machine = self._machines.get(name)
        if machine is not None and gone_at < machine.gone_at:
            machine.gone_at = gone_at
            self._event_queue.note(gone_at + SHOWN_SECONDS, lambda: self._forget(name, gone_at))

    def _forget(self, name: str, gone_at: float) -> None:
        machine = self._machines.get(name)
        if machine is not None and machine.gone_at == gone_at:
            del self._machines[name]
            self._launched.pop(machine.launch_id, None)

    @override
    def is_ready(self, slot: Slot, machine: Machine, rules: Rules) -> bool:
        return slot.pool in rules.pools and self._event_queue.now >= self._machines[machine.id].serves_at

    def next_turns(self, name: str) -> list[float]:
        """Return the times, now or later, at which the machine `name` changes: it runs, serves, is stopped or is gone.
        If all these times are past, return [now]; for an unknown machine, return [].
        """
        machine = self._machines.get(name)
        if machine is None:
            return []
        now = self._event_queue.now
        turns = {machine.runs_at, machine.serves_at, machine.gone_at, machine.stopped_at}
        return sorted(at for at in turns if now <= at < inf) or [now]


def find_request(slot: Slot) -> str:
    """Return the name of the request that the launch or start of this slot is a part of. For a gang it is the id of the
    batch, because one request launches all machines of a gang; else the launch id of a launch, or the instance id of a
    start.
    """
    own = slot.instance_id if slot.power else slot.launch_id
    return (slot.batch if is_gang(slot) else own) or ""


def is_gang(slot: Slot) -> bool:
    return slot.gang is not None and slot.batch is not None and slot.power is None


class SimulatedDispatcher(Dispatcher):
    """Runs the slow tasks of workers in a simulation, each at its own time of the virtual clock.

    `ports` must be set before the first task runs.
    """

    ports: Ports

    def __init__(self, event_queue: EventQueue, cloud: SimulatedCloud) -> None:
        self._event_queue, self._cloud = event_queue, cloud
        self.due: float | None = None

    def launch(self, name: str, slot_id: str | None) -> object:
        """Carry out the launch of a slot's machine, or the one request for all machines of a gang (`slot_id` None), as
        a worker does in production. `name`: the launch id, or the id of the gang's batch.
        """
        return launch(self.ports, name, slot_id)

    def start(self, slot_id: str, epoch: int) -> str:
        """Start the stopped machine of this slot, as a worker does in production. Return the outcome of the start as
        one word, as `start_all` does.
        """
        return start_all(self.ports, [(slot_id, epoch)])[slot_id]

    @override
    def send_launches(self, slots: Sequence[Slot]) -> None:
        # The simulated cloud decides now whether it refuses a launch. Its answer arrives after the delay that
        # the setting `cloud.launch` gives in seconds. The slots of a gang's batch get one answer.
        requests: dict[str, Slot] = {}
        for slot in self._judge(slots):
            requests.setdefault(find_request(slot), slot)
        for slot in requests.values():
            self._note_launch(slot, self._event_queue.now + self._cloud.delays.launch)

    def go_on_launching(self, slot: Slot) -> None:
        """Continue a launch that began before the scenario, at `slot.since`: let the simulated cloud decide whether it
        refuses the launch, and schedule its answer.
        """
        self._judge([slot])
        self._note_launch(slot, slot.since + self._cloud.delays.launch)

    def _judge(self, slots: Sequence[Slot]) -> Sequence[Slot]:
        """Let the simulated cloud decide which launches or starts of these slots it refuses. Return `slots`.

        The cloud compares the number of existing machines with its quota. The number is counted from the stored rows of
        slots. There the rows of `slots` already have the state of a slot with a machine, so they are subtracted.
        Requests that the cloud will refuse are subtracted, too.
        """
        if slots:
            rules = self.ports.rules()
            pools = rules.pools
            active = (slot for slot in self.ports.store.find_slots() if slot.state not in UNPAID)
            # The machines in EC2, from launching to terminating, without the stopped ones.
            machines = sum(slot.pool not in pools or pools[slot.pool].is_elastic for slot in active)
            self._cloud.judge(slots, machines - len(slots) - self._cloud.refused, rules)
        return slots

    def _note_launch(self, slot: Slot, at: float) -> None:
        request = find_request(slot)

        def answer() -> None:
            self.launch(request, None if is_gang(slot) else slot.id)
            # The launch may not be wanted any more; then the cloud was not called.
            self._cloud.forget_request(request)

        self._event_queue.note(at, answer)

    @override
    def send_terminations(self, slots: Sequence[Slot]) -> None:
        # A slot without a machine becomes empty after the same time as a slot with a machine.
        for slot in slots:
            wait = 0.0 if slot.instance_id else self._cloud.delays.terminate
            # A simulated machine costs the same whoever ends it, and its figures count until its end.
            end = partial(terminate, self.ports, slot.id, slot.epoch, spares=False)
            self._event_queue.note(self._event_queue.now + wait, end)

    @override
    def send_power(self, slots: Sequence[Slot]) -> None:
        # Whether the simulated cloud refuses a start is decided now.
        now = self._event_queue.now
        for slot in self._judge([slot for slot in slots if slot.power == "start"]):
            self._event_queue.note(now, partial(self._start, slot.id, slot.epoch))
        for slot in slots:
            if slot.power == "stop":
                self._event_queue.note(now, partial(stop_all, self.ports, [(slot.id, slot.epoch)]))

    def _start(self, slot_id: str, epoch: int) -> None:
        self.start(slot_id, epoch)

    @override
    def send_checks(self, slots: Sequence[str]) -> None:
        for name in slots:
            for slot in self.ports.store.find_slots(ids=[name]):
                self.note_checks(slot)

    def note_checks(self, slot: Slot) -> None:
        """Schedule a check of this slot for each time at which its machine changes its state."""
        for at in self._cloud.next_turns(slot.instance_id or ""):
            self._event_queue.note(at, partial(check, self.ports, [slot.id]))

    @override
    def send_callback(self, outgoing: OutboxMessage) -> None:
        # A simulation has no producers that receive callbacks.
        pass

    @override
    def wake_at(self, due: float | None, now: float) -> None:
        self.due = None if due is None else max(due, now)


class SimulatedViewCache(MemoryViewCache, ViewCache):
    """The ViewCache of a simulation. Published changes are kept in order until the next tick applies them to the view.

    In contrast to Redis, ended reservations and deleted rows leave the view at once, so that a scenario may use an id
    again.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changes: list[Change] = []
        """The changes that were published since the last call of `catch_up`."""

    @override
    def publish(self, changes: Sequence[Change]) -> bool:
        if self._view is None:
            return False
        self._changes += changes
        return True

    @override
    def catch_up(self) -> View | None:
        if self._view is not None:
            for change in self._changes:
                self._view.apply(change)
            self._changes.clear()
        return self._view

    @override
    def load(self) -> View | None:
        return self.catch_up()

    @override
    def rebuild(self, rows: Iterable[Row]) -> View:
        self._changes.clear()
        self._view = View(rows)
        return self._view

    @override
    def matches_copy(self) -> bool:
        return self._view is not None

    @override
    def read_kept(self) -> dict[str, Reservation]:
        view = self.catch_up()
        return {} if view is None else dict(view.reservations)
