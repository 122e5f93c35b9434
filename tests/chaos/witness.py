"""The witness: record terms, events and the machines of slots from SQL throughout a run, because a restore removes some
of them from SQL.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import msgspec

from scheduler.model.events import Event
from scheduler.model.transitions import ENDED
from scheduler.ports import EventFilter, Store, StoreUnavailableError

TICKS: Final = "ticks.jsonl"
EVENTS: Final = "events.jsonl"
MACHINES: Final = "machines.jsonl"
LOOK_SECONDS: Final = 0.05
LOOKS_A_READING: Final = 4
"""New events and the slots are read at every fourth observation."""
READINGS_A_WHOLE: Final = 5
"""Every fifth reading reads all events, because a restore that is given up halfway reuses their numbers."""
OVERLAP: Final = 200
"""Event numbers that are read again: a transaction may commit a lower number after a higher one."""
PAGE: Final = 1000
ENDS: Final = frozenset(f"reservation_{phase}" for phase in ENDED)


class Witness:
    """Observes SQL from its own thread, within `with`, and writes `ticks.jsonl`, `events.jsonl` and
    `machines.jsonl`.
    """

    def __init__(self, folder: Path, store: Store) -> None:
        self._folder, self._store = folder, store
        self._seen: set[bytes] = set()
        self._highest = 0
        self._restores: int | None = None
        self._machines: dict[str, tuple[int, int, str | None]] = {}
        """Slot → number of restores, epoch and machine when it was seen last."""
        self.ended: set[str] = set()
        """Reservations whose end was seen; a restore may have undone it."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="witness", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        looks = 0
        files = (self._folder / name for name in (TICKS, MACHINES, EVENTS))
        with ExitStack() as stack:
            ticks, machines, events = (stack.enter_context(file.open("ab", buffering=0)) for file in files)
            while not self._over.wait(LOOK_SECONDS):
                with suppress(StoreUnavailableError):
                    self._look_at_tick(ticks)
                    if looks % LOOKS_A_READING == 0:
                        self._look_at_slots(machines)
                        self._read(events, is_whole=looks % (LOOKS_A_READING * READINGS_A_WHOLE) == 0)
                looks += 1

    def _look_at_tick(self, file: BinaryIO) -> None:
        seen = time.time()
        leader_term = self._store.load_leader_term()
        _write(file, {"term": leader_term.term, "at": leader_term.ticked_at, "seen": seen})

    def _look_at_slots(self, file: BinaryIO) -> None:
        """Record the machine of each slot that has another one than before, or that was seen before a restore."""
        seen = time.time()
        slots, restores = self._store.find_slots(), self._store.read_cluster().restores
        for slot in slots:
            present = restores, slot.epoch, slot.instance_id
            if self._machines.get(slot.id) != present and slot.instance_id is not None:
                _write(file, {"slot": slot.id, "epoch": slot.epoch, "machine": slot.instance_id, "seen": seen})
            self._machines[slot.id] = present

    def _read(self, file: BinaryIO, *, is_whole: bool) -> None:
        found = list(read_events(self._store, 0 if is_whole else max(self._highest - OVERLAP, 0)))
        restores = self._store.read_cluster().restores
        if restores != self._restores:
            # A restore reuses the numbers: its own events have lower ones than the highest number that was seen.
            found, self._restores = list(read_events(self._store)), restores
        for event in found:
            self._highest = event.number
            line = msgspec.json.encode(event)
            if line in self._seen:
                continue
            self._seen.add(line)
            file.write(line + b"\n")
            if event.name in ENDS and event.reservation is not None:
                self.ended.add(event.reservation)


def _write(file: BinaryIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line).encode() + b"\n")


def read_events(store: Store, after: int = 0) -> Iterator[Event]:
    """Yield all events of the database with numbers above `after`."""
    while page := store.read_events(EventFilter(after=after, limit=PAGE)):
        yield from page
        after = page[-1].number


def recall_events(folder: Path, store: Store) -> list[Event]:
    """Return the events that the witness recorded, in that order, and then further ones that are in SQL."""
    file = folder / EVENTS
    lines: Iterable[bytes] = file.read_bytes().splitlines() if file.exists() else ()
    seen = dict.fromkeys(lines)
    later = dict.fromkeys(msgspec.json.encode(event) for event in read_events(store))
    return [msgspec.json.decode(line, type=Event) for line in {**seen, **later}]
