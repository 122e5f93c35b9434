"""One play of `examples.flexible`: a workload under one setting, on the simulator's cluster, measured and checked."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from examples.flexible.workload import CORES, MEMORY_MIB, SYSTEM, Application, Workload, list_submissions
from scheduler.model.command_schemas import ReservationDocument
from scheduler.model.reservations import Reservation
from scheduler.operations.tick.tick import Ticked
from scheduler.simulation.cloud_documents import CloudDocument
from scheduler.simulation.cluster import build_cluster, put_slot, submit_all
from scheduler.simulation.loop import EventLoop, Holders
from scheduler.simulation.scenario import SlotRecord

POOL = "machines"
FOREVER = 1e12
SLACK = 1e-6
"""Tolerated relative error of floating-point sums."""
ENDED_KEPT = 1000
"""Number of events at which ended rows are deleted."""


@dataclass(frozen=True)
class Setting:
    """How a play is scheduled, and what producers say their size is."""

    elastic: str
    queue: str
    size: str = "1D"
    preemption: bool = False
    backfill: bool = True

    def make_config(self) -> dict[str, Any]:
        """Return the rules: static machines, holders that release at once, and, as in a trace, no CPU bursting."""
        return {
            "scheduler": {
                "queue": self.queue,
                "elastic": self.elastic,
                "preemption": self.preemption,
                "backfill": self.backfill,
                "preemption_grace": 0,
                "confirm_timeout": 0,
                "share_cores": False,
            },
            "pools": {
                POOL: {
                    "system": SYSTEM,
                    "provider": "static",
                    "max_leases_per_slot": 1_000_000,
                    "idle_scale_down": FOREVER,
                    "offline_timeout": FOREVER,
                    "reservation_ttl": 0,
                    "lease_ttl": 0,
                    "resources": {"cpus": CORES, "memory_mib": MEMORY_MIB},
                }
            },
        }


@dataclass
class _Held:
    """What one application holds since when, and its work so far in instance-seconds."""

    essential: int
    by_slot: dict[str, int]
    since: float
    work: float = 0.0

    @property
    def leases(self) -> int:
        return sum(self.by_slot.values())


@dataclass(frozen=True)
class Ended:
    """When one application was first served, and when it ended, in seconds since it came; and T."""

    queuing: float
    turnaround: float
    run: float

    @property
    def slowdown(self) -> float:
        """The time from its first lease to its end as a multiple of T, which it takes with all its instances."""
        return (self.turnaround - self.queuing) / self.run


class Play:
    """One workload at one load under one setting, from an empty cluster until the last application has ended.

    Raises AssertionError when a machine is given out beyond what it has, when an essential instance is taken back, or
    when an application ends with more or less work than it asked for.
    """

    def __init__(self, workload: Workload, machines: int, load: float, setting: Setting) -> None:
        self._workload = workload
        self._applications: dict[str, Application] = {}
        self._submissions: Iterator[tuple[float, ReservationDocument]] = list_submissions(workload, load, setting.size)
        self._next = next(self._submissions, None)
        self.cluster = build_cluster(setting.make_config(), CloudDocument())
        self._holders = Holders(self.cluster, confirm_needlessly=False)
        self._loop = EventLoop(self.cluster, self._process_events, _ignore, kicks=True, wakes=True)
        self._held: dict[str, _Held] = {}
        self._begun: dict[str, float] = {}
        self._used = {f"{POOL}-{number}": [0.0, 0.0] for number in range(1, machines + 1)}
        """By machine: cpus and memory in MiB that are leased."""
        self.ended: dict[str, Ended] = {}
        self.shares: list[tuple[float, float, float]] = []
        """From when on so much of all cpus, and of all memory, is leased."""
        self._seen = len(self.cluster.store.events)
        for name in self._used:
            put_slot(self.cluster, SlotRecord(id=name, pool=POOL))
        self._process_events()

    @property
    def now(self) -> float:
        """Return the seconds on the virtual clock."""
        return self.cluster.event_queue.now

    @property
    def ticks(self) -> int:
        """How many there were."""
        return self._loop.ticks

    def play(self) -> None:
        """Run to the end."""
        total = len(self._workload.applications)
        while len(self.ended) < total:
            now = min(self._next[0] if self._next else inf, self._loop.next_instant())
            assert now < FOREVER, "an application waits forever"
            self._play_instant(now)
            self._check_machines()

    def _play_instant(self, now: float) -> None:
        self.cluster.event_queue.now = now
        self._loop.run_due()
        if words := self._take_wishes(now):
            submit_all(self.cluster, words)
            self._loop.run_due()
        self._loop.tick_until_quiet()
        self._forget()

    def _take_wishes(self, now: float) -> list[ReservationDocument]:
        words = []
        while self._next is not None and self._next[0] <= now:
            words.append(self._next[1])
            self._applications[self._next[1].id or ""] = self._workload.applications[len(self._applications)]
            self._next = next(self._submissions, None)
        return words

    def _process_events(self) -> bool:
        store = self.cluster.store
        events = store.events[self._seen :]
        self._seen += len(events)
        names = list(dict.fromkeys(event.reservation for event in events if event.reservation))
        for row in store.find_reservations(ids=names, limit=len(names)) if names else ():
            self._note(row)
            self._holders.watch(row)
        return bool(events)

    def _note(self, row: Reservation) -> None:
        application = self._applications[row.id]
        held = self._held.setdefault(row.id, _Held(0, {}, self.now))
        held.work += held.leases * (self.now - held.since)
        held.since = self.now
        essential, by_slot = _count(row)
        if row.phase != "released":
            assert essential >= held.essential, f"{row.id}: an essential instance was taken back"
        self._move(application, held.by_slot, by_slot)
        held.essential, held.by_slot = essential, by_slot
        if row.phase == "leased":
            assert essential == application.essential, f"{row.id}: leased without all that is essential"
            self._begun.setdefault(row.id, self.now)
        elif row.phase == "released":
            self._end(row, application)

    def _move(self, application: Application, before: dict[str, int], after: dict[str, int]) -> None:
        for slot in before.keys() | after.keys():
            more = after.get(slot, 0) - before.get(slot, 0)
            self._used[slot][0] += more * application.cpus
            self._used[slot][1] += more * application.memory_gib * 1024

    def _end(self, row: Reservation, application: Application) -> None:
        work, asked = self._held.pop(row.id).work, application.run * application.instances
        assert abs(work - asked) <= SLACK * asked + SLACK, f"{row.id}: did {work} instance-seconds of {asked}"
        begun = self._begun.pop(row.id)
        self.ended[row.id] = Ended(begun - row.created_at, self.now - row.created_at, application.run)

    def _check_machines(self) -> None:
        for name, (cpus, memory) in self._used.items():
            assert cpus <= CORES * (1 + SLACK), f"{name}: {cpus} cpus are leased"
            assert memory <= MEMORY_MIB * (1 + SLACK), f"{name}: {memory} MiB are leased"
        shares = [sum(each[at] for each in self._used.values()) / len(self._used) for at in (0, 1)]
        self.shares.append((self.now, shares[0] / CORES, shares[1] / MEMORY_MIB))

    def _forget(self) -> None:
        store = self.cluster.store
        if len(store.events) >= ENDED_KEPT:
            store.prune(events_before=inf, requests_before=inf, ended_before=inf)
            self._seen = len(store.events)


def _count(row: Reservation) -> tuple[int, dict[str, int]]:
    essential, by_slot = 0, dict[str, int]()
    for lease in row.leases:
        essential += lease.kind == "essential"
        by_slot[lease.slot] = by_slot.get(lease.slot, 0) + 1
    return essential, by_slot


def _ignore(_: Ticked) -> None:
    pass
