"""Runs a workload trace (a log of batch jobs) on the virtual clock, with the operations of production, and returns
metrics.
"""

import gc
from collections import Counter
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final

import msgspec

from scheduler.model.events import Event
from scheduler.model.rules import merge_rules
from scheduler.model.validation import InvalidInputError, fault
from scheduler.operations.commands.slot_commands import INTERRUPTED
from scheduler.operations.ending_leases import REVOKED
from scheduler.operations.paused_gc import PausedGC
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.operations.writers.reservations import GRANTED
from scheduler.simulation.cluster import build_cluster, count_released, put_slot, submit_all
from scheduler.simulation.fleet import FOREVER, Fleet
from scheduler.simulation.loop import EventLoop, Holders, Interruptions
from scheduler.simulation.metrics import Bill, Processors, RunMetrics, Summary
from scheduler.simulation.timeline import Timeline, TimelineRecorder
from scheduler.simulation.workload import RequestedTimes, Workload, list_enforcing_accounts, list_submissions

ENDED_KEPT: Final = 1000
"""After how many new events a trace run deletes the events and the ended rows, so that reads stay fast."""

PRUNES_A_FULL_COLLECTION: Final = 100
"""After this number of deletions a trace run lets Python's garbage collector examine all objects once. In between the
collector examines only young objects, because a run makes few reference cycles.
"""

MOST_SETBACKS: Final = 1000
"""How many times one job may lose its leases, and its work with them. Then the run is stopped, because it would
probably never end: a job that is interrupted seven times in its run time, on average, completes once in about this many
tries.
"""
MOST_IDLE_TICKS: Final = 50_000
"""The most ticks in a row in which all jobs of a trace wait; then the run is stopped. With one tick a minute, this is
more than a month of refused launches.
"""


class Setbacks:
    """Counts how often the jobs of a trace lose their leases (a setback), and raises InvalidInputError when this
    happens too often.

    Without this limit, a run in which jobs lose their machines again and again, or get none, would never end.
    """

    def __init__(self, most_setbacks: int = MOST_SETBACKS, most_idle_ticks: int = MOST_IDLE_TICKS) -> None:
        self._most_setbacks, self._most_idle_ticks = most_setbacks, most_idle_ticks
        self._by_job: Counter[str] = Counter()
        self._moved_at = 0
        """Number of the last tick at which a job had a lease, or no job was waiting."""

    def note(self, event: Event) -> None:
        """Count an event of a job: each return to the queue is a setback, and the end of the job clears its count.

        Raises InvalidInputError if the job has had too many setbacks.
        """
        job = event.reservation or ""
        if event.name in {"reservation_released", "reservation_expired"}:
            del self._by_job[job]
        elif event.name == "reservation_pending":
            self._by_job[job] += 1
            if self._by_job[job] >= self._most_setbacks:
                reason = event.detail.get("reason")
                raise _never_ends(f"{job} went back to the queue {self._most_setbacks:,} times ({reason})")

    def note_ticks(self, ticks: int, *, all_wait: bool) -> None:
        """Count the ticks in a row in which all jobs wait. `ticks`: the number of ticks so far. `all_wait`: some jobs
        wait for a lease, and no job has one.

        Raises InvalidInputError if all jobs have waited through too many ticks in a row.
        """
        if not all_wait:
            self._moved_at = ticks
        elif ticks - self._moved_at >= self._most_idle_ticks:
            raise _never_ends(f"all jobs waited through {self._most_idle_ticks:,} ticks in a row")


def _never_ends(got: str) -> InvalidInputError:
    return fault("config", "a fleet and a cloud on which every job of the trace ends", got)


class TracePlay:
    """One run of a workload trace on a simulated fleet. It ends when the last job has ended."""

    def __init__(
        self,
        workload: Workload,
        fleet: Fleet,
        elastic_share: float = 0.0,
        setbacks: Setbacks | None = None,
        *,
        records: bool = False,
        requested_times: RequestedTimes | None = None,
    ) -> None:
        """Prepare the run of `workload` on `fleet`. `elastic_share`: the share of each job's processors that are
        elastic. `setbacks`: stops a run that would never end (default: with the limits of this module). `records`:
        whether the run records its timeline, which takes time. `requested_times`: what the requested times of the jobs
        become (None: nothing).
        """
        self._workload = workload
        accounts = list_enforcing_accounts(workload) if requested_times == "limit" else {}
        document = merge_rules(fleet.document, {"accounts": accounts}) if accounts else fleet.document
        self.cluster = build_cluster(document, fleet.cloud)
        self._holders = Holders(self.cluster, confirm_needlessly=False)
        self._interruptions = Interruptions(self.cluster)
        self._setbacks = setbacks or Setbacks()
        self._metrics = RunMetrics(fleet.rules)
        self._bill = Bill(self.cluster) if fleet.cloud.market.is_on else None
        self._loop = EventLoop(self.cluster, self._process_events, lambda _: None, kicks=True, wakes=True)
        self._submissions = list_submissions(workload, fleet.system, elastic_share, requested_times)
        self._next = next(self._submissions, None)
        self._seen = len(self.cluster.store.events)
        self._prunes = 0
        self._wall_seconds = 0.0
        self._recorder = TimelineRecorder(self.cluster) if records else None
        # Create the slots of the fleet's static hosts without a heartbeat, so that no host ever counts as
        # silent.
        hosts = fleet.list_hosts()
        for host in hosts:
            put_slot(self.cluster, host)

        def forget_heartbeats(work: UnitOfWork) -> None:
            for slot in list(work.slots.values()):
                work.put(msgspec.structs.replace(slot, last_seen=None))

        self.cluster.change(forget_heartbeats, lambda work: work.load(slots=[host.id for host in hosts]))
        self._process_events()

    @property
    def finished(self) -> int:
        """Return the number of jobs that have ended so far."""
        return self._metrics.finished

    @property
    def ended(self) -> int:
        """Return how many jobs have ended so far, plus how many lines of the log were skipped."""
        return self._metrics.finished + len(self._workload.skipped)

    @property
    def now(self) -> float:
        """Return the seconds on the virtual clock, which starts at the submit of the first job."""
        return self.cluster.event_queue.now

    def play(self, on_progress: Callable[[], object] = lambda: None) -> None:
        """Run the trace until all jobs have ended. `on_progress` is called at each virtual time, and may raise to stop
        the run.

        Raises InvalidInputError for a trace that never ends on this fleet.
        """
        began = monotonic()
        try:
            with PausedGC():
                while self._metrics.finished < len(self._workload.jobs):
                    found = min(self._next[0] if self._next else inf, self._loop.next_instant())
                    if found >= FOREVER:
                        row = next(iter(self.cluster.store.find_reservations(phases=["pending", "leased"], limit=1)))
                        waits = self.cluster.ports.view_cache.read_report().get("waiting", {}).get(row.id, [row.phase])
                        reason = ", ".join(waits)
                        raise fault(
                            "config", "a fleet that serves every job of the trace", f"{row.id} waits for ever: {reason}"
                        )
                    self._play_instant(found)
                    on_progress()
        finally:
            self._wall_seconds += monotonic() - began

    def _play_instant(self, now: float) -> None:
        self.cluster.event_queue.now = now
        self._metrics.advance(now)
        if self._recorder is not None:
            self._recorder.advance(now)
        self._loop.run_due()
        documents = []
        while self._next is not None and self._next[0] <= now:
            documents.append(self._next[1])
            self._next = next(self._submissions, None)
        if documents:
            submit_all(self.cluster, documents)
            self._loop.run_due()
        self._loop.tick_until_quiet()
        market = self.cluster.cloud.market
        refreshes = market.refreshes if market is not None else 0
        self._setbacks.note_ticks(self._loop.ticks + refreshes, all_wait=self._metrics.all_wait)
        if len(self.cluster.store.events) >= ENDED_KEPT:
            store = self.cluster.store
            store.prune(events_before=inf, requests_before=inf, ended_before=inf)
            self._seen = len(store.events)
            self._prunes += 1
            gc.collect(1 if self._prunes % PRUNES_A_FULL_COLLECTION else 2)

    def _process_events(self) -> bool:
        """Pass the events that the store has recorded since the last call to the simulated holders of leases, to the
        spot interruptions and to the metrics. Return whether there were any.
        """
        store = self.cluster.store
        events = store.events[self._seen :]
        if not events:
            return False
        self._seen += len(events)
        recorder = self._recorder
        for name in dict.fromkeys(event.slot for event in events if event.slot):
            slot = self.cluster.find_slot(name)
            self._metrics.note_slot(slot, name)
            if self._bill is not None:
                self._bill.note_slot(slot, name)
            if recorder is not None:
                recorder.note_slot(slot, name)
        for event in events:
            self._note(event)
            if recorder is not None:
                recorder.note_event(event)
        names = list(dict.fromkeys(event.reservation for event in events if event.reservation))
        if names:
            rows = store.find_reservations(ids=names, limit=len(names))
            count_released(self.cluster, events, rows)
            for row in rows:
                self._metrics.note_reservation(row)
                if recorder is not None:
                    recorder.note_reservation(row)
                self._holders.watch(row)
        return True

    def _note(self, event: Event) -> None:
        self._setbacks.note(event)
        match event.name:
            case "slot_launching":
                self._metrics.launches += 1
            case "slot_booting" if slot := self.cluster.find_slot(event.slot or ""):
                self._interruptions.note_machine(slot)
            case _ if event.name == INTERRUPTED:
                self._metrics.interruptions += 1
            case "reservation_revoking" | "reservation_pending":
                preempted = event.detail.get("reason") == "preempted" and event.detail.get("from") == "leased"
                self._metrics.preemptions += preempted
            case _ if event.name == GRANTED:
                self._metrics.grants += 1
            case _ if event.name == REVOKED:
                # A surrendered lease was revoked before, so it is not counted again.
                self._metrics.revocations += event.detail.get("reason") != "surrendered"

    def sum_up(self) -> Summary:
        """Return the results of the simulated trace so far: waits, utilisation and counts."""
        return self._metrics.sum_up(
            jobs=len(self._workload.jobs) + len(self._workload.skipped),
            skipped=len(self._workload.skipped),
            ticks=self._loop.ticks,
            wall_seconds=self._wall_seconds,
            bill=self._bill.list_lines() if self._bill is not None else (),
        )

    def count_processors(self) -> Processors:
        return self._metrics.count_processors()

    def finish_timeline(self) -> Timeline | None:
        """Return the timeline of the trace run so far; None if the run does not record it."""
        return None if self._recorder is None else self._recorder.finish()
