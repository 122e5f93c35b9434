"""Play a workload trace on the virtual clock: the same plan and operations as in production, and figures at the end."""

from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final

import msgspec

from scheduler.model.command_schemas import ReservationDocument
from scheduler.model.events import Event
from scheduler.model.validation import fault
from scheduler.operations.commands.lease_commands import INTERRUPTED
from scheduler.operations.ending_leases import REVOKED
from scheduler.operations.tick.tick import Ticked
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.operations.writers.elastic import GRANTED
from scheduler.simulation.cluster import build_stage, put_slot, submit_all
from scheduler.simulation.fleet import FOREVER, Fleet
from scheduler.simulation.holders import Holders
from scheduler.simulation.interruptions import Interruptions
from scheduler.simulation.loop import EventLoop
from scheduler.simulation.metrics import Picture, RunMetrics, Summary
from scheduler.simulation.setbacks import Setbacks
from scheduler.simulation.workload import Workload, list_wishes

ENDED_KEPT: Final = 1000
"""So many events are kept before what is over is forgotten: then the cost of that does not grow with the trace."""


class TracePlay:
    """One play of a workload on a fleet, with kicks and wakes; `play` goes on until the last job has ended."""

    def __init__(
        self, workload: Workload, fleet: Fleet, elastic_share: float = 0.0, setbacks: Setbacks | None = None
    ) -> None:
        """`setbacks`: when to give up, where that is not to be after as many as usual."""
        self._workload, self._fleet = workload, fleet
        self.stage = build_stage(fleet.document, fleet.cloud)
        self._holders = Holders(self.stage, confirm_needlessly=False)
        self._hazards = Interruptions(self.stage)
        self._setbacks = setbacks or Setbacks()
        self._figures = RunMetrics(fleet.rules)
        self._clockwork = EventLoop(self.stage, self._tell_events, _ignore, kicks=True, wakes=True)
        self._wishes = list_wishes(workload, fleet.system, elastic_share)
        self._next = next(self._wishes, None)
        self._seen = len(self.stage.store.events)
        self._wall_seconds = 0.0
        self._put_hosts()
        self._tell_events()

    def _put_hosts(self) -> None:
        """Hosts that nobody hears of count as present: without a heartbeat there is none to be missed."""
        hosts = self._fleet.list_hosts()
        for host in hosts:
            put_slot(self.stage, host)

        def load(work: UnitOfWork) -> None:
            work.load(slots=[host.id for host in hosts])

        def forget_heartbeats(work: UnitOfWork) -> None:
            for slot in list(work.slots.values()):
                work.put(msgspec.structs.replace(slot, last_seen=None))

        self.stage.change(forget_heartbeats, load)

    @property
    def finished(self) -> int:
        """How many jobs were played to their end."""
        return self._figures.finished

    @property
    def ended(self) -> int:
        """How many jobs are over, those that were left out too."""
        return self._figures.finished + len(self._workload.skipped)

    @property
    def now(self) -> float:
        """Seconds on the virtual clock: since the first job came."""
        return self.stage.agenda.now

    def play(self, on_progress: Callable[[], object] = lambda: None) -> None:
        """Play to the end, telling of progress after each instant. May be cut off at any time by an exception.

        Raises InvalidInputError for a trace that never ends on this fleet.
        """
        began = monotonic()
        try:
            while self._figures.finished < len(self._workload.jobs):
                self._play_instant(self._next_instant())
                on_progress()
        finally:
            self._wall_seconds += monotonic() - began

    def _next_instant(self) -> float:
        """When something happens next; raises InvalidInputError when nothing will although jobs wait."""
        found = min(self._next[0] if self._next else inf, self._clockwork.next_instant())
        if found >= FOREVER:
            row = next(iter(self.stage.store.find_reservations(phases=["pending", "leased"], limit=1)))
            waits = self.stage.ports.view_cache.read_report().get("waiting", {}).get(row.id, [row.phase])
            raise fault("config", "a fleet that serves every job of the trace", f"{row.id} waits for ever: {waits}")
        return found

    def _play_instant(self, now: float) -> None:
        self.stage.agenda.now = now
        self._figures.advance(now)
        self._clockwork.run_due()
        if words := self._take_wishes(now):
            submit_all(self.stage, words)
            self._clockwork.run_due()
        self._clockwork.tick_until_quiet()
        self._setbacks.note_ticks(self._clockwork.ticks, all_wait=self._figures.all_wait)
        self._forget()

    def _take_wishes(self, now: float) -> list[ReservationDocument]:
        words = []
        while self._next is not None and self._next[0] <= now:
            words.append(self._next[1])
            self._next = next(self._wishes, None)
        return words

    def _tell_events(self) -> bool:
        """Let holders, hazards and figures see what is new; whether there was anything."""
        store = self.stage.store
        events = store.events[self._seen :] if len(store.events) > self._seen else []
        if not events:
            return False
        self._seen += len(events)
        slots = dict.fromkeys(event.slot for event in events if event.slot)
        for name in slots:
            self._figures.note_slot(self.stage.find_slot(name), name)
        for event in events:
            self._note(event)
        names = list(dict.fromkeys(event.reservation for event in events if event.reservation))
        if names:
            for row in store.find_reservations(ids=names, limit=len(names)):
                self._figures.note_reservation(row)
                self._holders.watch(row)
        return True

    def _note(self, event: Event) -> None:
        self._setbacks.note(event)
        match event.name:
            case "slot_launching":
                self._figures.launches += 1
            case "slot_booting" if slot := self.stage.find_slot(event.slot or ""):
                self._hazards.note_machine(slot)
            case _ if event.name == INTERRUPTED:
                self._figures.interruptions += 1
            case "reservation_revoking" | "reservation_pending":
                preempted = event.detail.get("reason") == "preempted" and event.detail.get("from") == "leased"
                self._figures.preemptions += preempted
            case _ if event.name == GRANTED:
                self._figures.grants += 1
            case _ if event.name == REVOKED:
                # What is surrendered was revoked before, and is no second one.
                self._figures.revocations += event.detail.get("reason") != "surrendered"

    def _forget(self) -> None:
        """Drop what is over: all that is wanted of it was noted."""
        store = self.stage.store
        if len(store.events) < ENDED_KEPT:
            return
        store.prune(events_before=inf, requests_before=inf, ended_before=inf)
        self._seen = len(store.events)

    def sum_up(self) -> Summary:
        """What it came to so far."""
        jobs = len(self._workload.jobs) + len(self._workload.skipped)
        return self._figures.sum_up(
            jobs=jobs,
            skipped=len(self._workload.skipped),
            ticks=self._clockwork.ticks,
            wall_seconds=self._wall_seconds,
        )

    def draw(self) -> Picture:
        """What a plot shows of it."""
        return self._figures.draw()


def _ignore(_: Ticked) -> None:
    pass
