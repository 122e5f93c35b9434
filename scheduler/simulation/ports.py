"""The ports that a simulation implements itself: dispatcher and view cache.

The dispatcher runs the slow tasks of workers on the virtual clock: launches, starts, stops, terminations and checks.
The view cache has only one copy of the rows, because the same process publishes and reads.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from typing_extensions import override

from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.transitions import UNPAID
from scheduler.model.view import Change, Row, View
from scheduler.operations.machines.batch import launch_batch
from scheduler.operations.machines.check import check
from scheduler.operations.machines.launch import launch
from scheduler.operations.machines.power import start_all, stop_all
from scheduler.operations.machines.terminate import terminate
from scheduler.operations.ports import Ports
from scheduler.ports import OutboxMessage, ViewUnavailableError
from scheduler.ports.view import Dispatcher, ViewCache
from scheduler.simulation.cloud import EventQueue, SimulatedCloud, find_request, is_gang
from scheduler.view.memory import MemoryViewCache


class SimulatedDispatcher(Dispatcher):
    """Runs the slow tasks of workers in a simulation, each at its own time of the virtual clock.

    `ports` must be set before the first task runs.
    """

    ports: Ports

    def __init__(self, event_queue: EventQueue, cloud: SimulatedCloud) -> None:
        self._event_queue, self._cloud = event_queue, cloud
        self.due: float | None = None

    def launch(self, slot_id: str, launch_id: str) -> object:
        """Carry out the launch of this slot's machine, as a worker does in production."""
        return launch(self.ports, slot_id, launch_id)

    def launch_gang(self, batch: str) -> object:
        """Carry out the one request for all machines of a gang, as a worker does in production. `batch`: the id of the
        request's batch of slots.
        """
        return launch_batch(self.ports, batch)

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
            if is_gang(slot):
                self.launch_gang(request)
            else:
                self.launch(slot.id, request)
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

    def _valid_rows(self, kind: str) -> dict[str, Row]:
        view = self.catch_up()
        if view is None:
            raise ViewUnavailableError("there is no view yet: the first tick builds it")
        return dict(view.rows(kind))
