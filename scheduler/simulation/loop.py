"""The loop of a simulation advances the virtual clock, and runs the callbacks and ticks that are due. Callbacks are
what machines and holders do at a time: holders of reservations with a `runtime` confirm, renew, surrender and release
the leases; the cloud ends machines, with or without a notice, on order or at random.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random

from scheduler.model.command_schemas import ConfirmDocument, HolderDocument, SurrenderDocument
from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.transitions import WITH_MACHINE
from scheduler.model.validation import fault
from scheduler.operations.commands import slot_commands
from scheduler.operations.commands.lease_commands import release, renew, surrender
from scheduler.operations.commands.reports import confirm
from scheduler.operations.machines.check import check
from scheduler.operations.tick.leader import take_leader_term
from scheduler.operations.tick.tick import Ticked, carry_out, decide
from scheduler.simulation.cluster import SimulatedCluster

MOST_TICKS = 1000
"""The most ticks at one virtual time. If more are requested, each by the tick before, the loop is endless, and an error
is raised.
"""


class EventLoop:
    """Runs the callbacks and ticks that are due on one simulated cluster.

    `process_events`: a function that handles the new events of the history and returns whether there were any.
    `on_tick`: a function that is called with the result of each tick, before the events that the tick's writes caused
    are handled. `kicks`: whether requested ticks run; `wakes`: whether ticks run that are scheduled for a time.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        process_events: Callable[[], bool],
        on_tick: Callable[[Ticked], None],
        *,
        kicks: bool,
        wakes: bool,
    ) -> None:
        self._cluster, self._process_events, self._on_tick = cluster, process_events, on_tick
        self._kicks, self._wakes = kicks, wakes
        self.ticks = 0
        """Number of ticks that this simulation has run so far."""
        self.before_tick: Callable[[], None] = lambda: None
        """A function that is called before each tick of the simulation. Tests set it, for example to end a
        scheduler.
        """

    def next_instant(self) -> float:
        """Return the virtual time of the next callback or scheduled tick; infinity when there is none."""
        wake = self._cluster.dispatcher.due if self._wakes else None
        return min(self._cluster.event_queue.next_at, inf if wake is None else wake)

    def run_due(self) -> None:
        """Run the callbacks of machines and holders that are due now, and handle the events that they cause, until no
        callback is due.
        """
        self._cluster.event_queue.run_due()
        while self._process_events():
            self._cluster.event_queue.run_due()

    def tick_until_quiet(self, *, is_due: bool = False) -> None:
        """Run a tick if `is_due` or if one is requested or scheduled for now, and further ticks until none is
        requested.

        Raises InvalidInputError if that takes more than MOST_TICKS ticks at one virtual time.
        """
        wanted, before = is_due or self._is_rung(), self.ticks
        while wanted:
            if self.ticks - before >= MOST_TICKS:
                at = f"{MOST_TICKS} ticks at {self._cluster.event_queue.now:g} s"
                raise fault(
                    "config", "rules without an endless sequence of ticks (a hold or timeout of 0 may cause one)", at
                )
            self.tick()
            wanted = self._is_rung()

    def _is_rung(self) -> bool:
        kicked = self._kicks and self._cluster.notifier.is_rung
        due = self._cluster.dispatcher.due
        return kicked or (self._wakes and due is not None and due <= self._cluster.event_queue.now)

    def tick(self, between: Callable[[], None] = lambda: None) -> None:
        """Run one tick: take the leader term, plan, call `between`, then commit the decisions."""
        self.before_tick()
        ports, leader = self._cluster.ports, self._cluster.leader
        self._cluster.notifier.hear()
        self._cluster.dispatcher.due = None
        leader_term = take_leader_term(ports, leader)
        ticked = decide(ports, leader, leader_term)
        between()
        self._process_events()
        carry_out(ports, leader, leader_term, ticked)
        self.ticks += 1
        self._on_tick(ticked)
        self._process_events()
        self.run_due()


@dataclass
class _Work:
    """The work of one reservation. `left`: instance-seconds of work that were left at the time `since`; `rate`: number
    of instances that work since then; `ends_at`: when the work ends at this rate; `token`: the fencing token of the
    reservation's lease.
    """

    left: float
    since: float
    token: int
    rate: float = 0.0
    ends_at: float = inf


class Holders:
    """Simulated holders of all reservations with a `runtime`: each holder works on the leased slots, then releases
    them.

    The work of a reservation is `runtime` seconds for each of its instances. While the essential instances are leased,
    each leased instance does one second of this work in each second.
    """

    def __init__(self, cluster: SimulatedCluster, *, confirm_needlessly: bool = True) -> None:
        """Start simulated holders for the reservations of `cluster`.

        `confirm_needlessly`: confirm leases also where no `confirm_timeout` requires it, so that rows have
        `confirmed_at`.
        """
        self._cluster = cluster
        self._confirm_needlessly = confirm_needlessly
        self._works: dict[str, _Work] = {}

    def watch(self, reservation: Reservation) -> None:
        """Let the holder of this reservation react to a change: begin or end work, or surrender revoked leases."""
        if reservation.request.runtime is None:
            return
        if reservation.phase == "leased":
            self._work(reservation, reservation.request.runtime)
        else:
            self._works.pop(reservation.id, None)
        if reservation.phase == "revoking" or any(lease.state == "revoking" for lease in reservation.leases):
            self._note(reservation.id, reservation.token, self._cluster.event_queue.now, self._surrender)

    def _work(self, reservation: Reservation, runtime: float) -> None:
        now = self._cluster.event_queue.now
        work = self._works.get(reservation.id)
        if work is None or work.token != reservation.token:
            instances = sum(component.count for component in reservation.request.components)
            work = _Work(runtime * instances, now, reservation.token)
            self._works[reservation.id] = work
            request = reservation.request
            settings = self._cluster.ports.rules().settings_of(request.pool, request.system)
            if self._confirm_needlessly or settings.confirm_timeout > 0:
                self._note(reservation.id, work.token, now, self._confirm)
            self._note_renewal(reservation)
        rate = float(len(reservation.leases))
        if rate == work.rate:
            # The same rate keeps the same end, so that rounding errors do not accumulate.
            return
        work.left = max(0.0, work.left - work.rate * (now - work.since))
        work.rate, work.since = rate, now
        work.ends_at = now + work.left / rate if rate else inf
        if rate:
            self._note(reservation.id, work.token, work.ends_at, self._finish)

    def _note(self, name: str, token: int, at: float, act) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        self._cluster.event_queue.note(at, lambda: act(name, token))

    def _note_renewal(self, reservation: Reservation) -> None:
        """Schedule a renewal of this reservation when half of the time until its expiry has passed."""
        if reservation.expires_at is not None:
            now = self._cluster.event_queue.now
            self._note(reservation.id, reservation.token, (now + reservation.expires_at) / 2, self._renew)

    def _is_working(self, name: str, token: int) -> bool:
        work = self._works.get(name)
        return work is not None and work.token == token

    def _send(self, name: str, command, document: HolderDocument) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        rules = self._cluster.ports.rules()
        self._cluster.change(lambda work: command(work, rules, document), lambda work: work.load(reservations=[name]))

    def _confirm(self, name: str, token: int) -> None:
        if self._is_working(name, token):
            self._send(name, confirm, ConfirmDocument(reservation=name))

    def _renew(self, name: str, token: int) -> None:
        if self._is_working(name, token):
            self._send(name, renew, HolderDocument(reservation=name))
            self._note_renewal(self._cluster.store.find_reservations(ids=[name])[0])

    def _surrender(self, name: str, token: int) -> None:
        row = self._cluster.store.find_reservations(ids=[name])[0]
        if (row.phase == "revoking" or any(lease.state == "revoking" for lease in row.leases)) and row.token == token:
            self._send(name, surrender, SurrenderDocument(reservation=name))

    def _finish(self, name: str, token: int) -> None:
        work = self._works.get(name)
        if work is not None and work.token == token and work.ends_at <= self._cluster.event_queue.now:
            del self._works[name]
            self._send(name, release, HolderDocument(reservation=name))


NOTICE_SECONDS = 120.0
"""Seconds between EC2's notice of an interruption and the end of the machine."""
RETIREMENT = "RETIREMENT"
"""The word that AWS Health's code of a change contains if the change ends the machine."""
HOUR = 3600.0


def interrupt_slot(cluster: SimulatedCluster, name: str, deadline: float) -> None:
    """Announce now that the cloud interrupts the machine of this slot, and end the machine after `deadline` seconds."""
    gone_at = cluster.event_queue.now + deadline
    cluster.change(
        lambda work: slot_commands.interrupt(work, name, gone_at),
        lambda work: work.load(slots=[name]),
    )
    slot = cluster.find_slot(name)

    def reclaim() -> None:
        present = cluster.find_slot(name)
        if present is not None and slot is not None and present.epoch == slot.epoch:
            lose_slot(cluster, name)

    if slot is not None and slot.interrupted_by is not None:
        cluster.event_queue.note(slot.interrupted_by, reclaim)


def announce_change(cluster: SimulatedCluster, name: str, begins_in: float, code: str) -> None:
    """Announce now that the cloud changes the machine of this slot in `begins_in` seconds. `code`: AWS Health's name of
    the change. If the code contains RETIREMENT, the machine ends at that time, unless the slot has another machine by
    then.
    """
    before, begins_at, rules = cluster.find_slot(name), cluster.event_queue.now + begins_in, cluster.ports.rules()
    cluster.change(
        lambda work: slot_commands.maintain(work, rules, name, code, begins_at),
        lambda work: work.load(slots=[name]),
    )

    def retire() -> None:
        present = cluster.find_slot(name)
        if present is not None and before is not None and present.epoch == before.epoch:
            lose_slot(cluster, name)

    if before is not None and before.instance_id and RETIREMENT in code:
        cluster.event_queue.note(begins_at, retire)


def lose_slot(cluster: SimulatedCluster, name: str) -> None:
    """End the machine of this slot now, without an earlier notice."""
    slot = cluster.find_slot(name)
    if slot is not None and slot.instance_id:
        cluster.cloud.end(slot.instance_id, cluster.event_queue.now)
        check(cluster.ports, [name])
    else:
        cluster.change(lambda work: slot_commands.lose(work, name), lambda work: work.load(slots=[name]))


class Interruptions:
    """Interrupts spot machines at random, on average `interruption_rate` times per hour of a machine. The rate of
    `[cloud]` counts in traces only; the rate of `[cloud.market]` counts in scenarios, too.

    The same seed gives the same interruptions, whatever the scheduling rules are.
    """

    def __init__(self, cluster: SimulatedCluster, *, is_trace: bool = True) -> None:
        self._cluster = cluster
        delays = cluster.cloud.delays
        self._rate, self._seed = delays.market.interruption_rate, delays.market.seed
        if is_trace and delays.interruption_rate:
            self._rate, self._seed = delays.interruption_rate, delays.seed

    def note_machine(self, slot: Slot) -> None:
        """Schedule the interruption of the machine that a slot has launched. The time from now to the interruption
        depends only on the seed, slot and epoch. On-demand machines are not interrupted.
        """
        if not self._rate or slot.market == "on-demand":
            return
        # Not for secrets: the result must be the same each time.
        seconds = Random(f"{self._seed}/{slot.id}/{slot.epoch}").expovariate(self._rate / HOUR)
        name, epoch = slot.id, slot.epoch
        self._cluster.event_queue.note(self._cluster.event_queue.now + seconds, lambda: self._interrupt(name, epoch))

    def _interrupt(self, name: str, epoch: int) -> None:
        slot = self._cluster.find_slot(name)
        if slot is not None and slot.epoch == epoch and slot.state in WITH_MACHINE:
            interrupt_slot(self._cluster, name, NOTICE_SECONDS)
