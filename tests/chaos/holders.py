"""`python -m tests.chaos.holders FOLDER NUMBER`: a process that reserves, holds and releases, and writes down what
it did with the places that it was given. It may be killed and started again: it asks for the same reservations.

A use is written with the time *before* it was seen that the lease is held, so it was held then: what the file says
is never more than what was so.
"""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Lock
from typing import Any, Final

from leasehold import Client
from leasehold.client.lease import Lease
from leasehold.client.models import Reservation
from leasehold.errors import LeaseholdError

CHUNK: Final = 20
LOOK_SECONDS: Final = 0.25
USE_SECONDS: Final = 0.03
WAIT_SECONDS: Final = 20.0
MISSING_SECONDS: Final = 3.0
"""What was accepted and is in no list for so long is asked for again: a restore may have lost it."""
PATIENCE_SECONDS: Final = 5.0
THREADS: Final = 24


WALL = "CHAOS_WALL"
"""The host's wall clock minus its monotonic clock, which all processes share. The wall clock of this process may be put
wrong.
"""


def read_host_time() -> float:
    """Seconds since the epoch, by the clock of the host."""
    return float(os.environ[WALL]) + time.monotonic()


class Diary:
    """Lines of JSON, each written whole and at once, so that a kill loses none of them."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._guard = Lock()

    def write(self, event: str, **fields: Any) -> None:
        """Write one line."""
        line = json.dumps({"event": event, **fields}).encode() + b"\n"
        with self._guard:
            self._file.write(line)


class Holders:
    """All holders of one process: its reservations, and a thread for each one that is leased."""

    def __init__(self, client: Client, wishes: list[dict[str, Any]], diary: Diary) -> None:
        self._client, self._diary = client, diary
        self._wishes = {wish["id"]: wish for wish in wishes}
        self._busy: set[str] = set()
        self._unasked = dict(self._wishes)
        self._open = set(self._wishes)
        self._seen_at: dict[str, float] = {}
        """When it was last listed, or accepted."""
        self._pause = Event()

    def work(self) -> None:
        """Reserve everything in its time, and hold what is leased, until the story ends: a restore may bring back what
        has ended.
        """
        began = time.monotonic()
        with ThreadPoolExecutor(THREADS) as threads:
            while True:
                self._reserve(time.monotonic() - began)
                for row in self._look():
                    if row.id not in self._busy:
                        self._busy.add(row.id)
                        threads.submit(self._hold, row.id)
                self._pause.wait(LOOK_SECONDS)

    def _reserve(self, elapsed: float) -> None:
        """Ask for what is due and not accepted yet, a part of it at a time; what is not answered is asked for again."""
        due = [wish["document"] for wish in self._unasked.values() if wish["after"] <= elapsed]
        for start in range(0, len(due), CHUNK):
            self._reserve_chunk(due[start : start + CHUNK])

    def _reserve_chunk(self, chunk: list[dict[str, Any]]) -> None:
        try:
            answers = self._client.reserve_many(chunk, timeout=PATIENCE_SECONDS)  # type: ignore[arg-type]
        except LeaseholdError as error:
            self._diary.write("unanswered", at=read_host_time(), error=str(error))
            return
        for answer in answers:
            if answer.ok and answer.reservation is not None:
                self._diary.write("accepted", reservation=answer.reservation, at=read_host_time())
                self._unasked.pop(answer.reservation, None)
                self._seen_at[answer.reservation] = time.monotonic()

    def _look(self) -> list[Reservation]:
        """Those of ours that are leased; what has ended is not looked for any more, unless it comes back."""
        try:
            rows = [row for row in self._client.list() if row.id in self._wishes]
        except LeaseholdError:
            # What was not listed cannot be missing.
            self._seen_at = dict.fromkeys(self._seen_at, time.monotonic())
            return []
        self._open -= {row.id for row in rows if row.is_over}
        self._open |= {row.id for row in rows if not row.is_over}
        self._note_missing({row.id for row in rows})
        return [row for row in rows if row.phase in {"leased", "revoking"}]

    def _note_missing(self, listed: set[str]) -> None:
        now = time.monotonic()
        self._seen_at |= dict.fromkeys(listed, now)
        for name in self._open - self._unasked.keys():
            if now - self._seen_at.get(name, now) > MISSING_SECONDS:
                self._unasked[name] = self._wishes[name]

    def _hold(self, name: str) -> None:
        wish = self._wishes[name]
        try:
            with self._client.lease(wait=WAIT_SECONDS, **wish["document"]) as lease:
                self._use(lease, wish)
        except LeaseholdError as error:
            self._diary.write("failed", reservation=name, at=read_host_time(), error=str(error))
        finally:
            self._busy.discard(name)

    def _use(self, lease: Lease, wish: dict[str, Any]) -> None:
        until = time.monotonic() + wish["seconds"]
        while time.monotonic() < until and not (lease.revoking.is_set() and wish["obeys"]):
            at = read_host_time()
            if not lease.is_held:
                return
            for place in lease.placements:
                self._diary.write(
                    "use",
                    at=at,
                    reservation=lease.id,
                    token=lease.token,
                    component=place.component,
                    slot=place.slot,
                    machine=place.instance_id,
                    cpus=place.resources.get("cpus", 0),
                )
            self._pause.wait(USE_SECONDS)


def main(folder: Path, number: str) -> None:
    """Hold what `wishes-NUMBER.json` asks for; write `holders-NUMBER.jsonl`."""
    wishes = json.loads((folder / f"wishes-{number}.json").read_text())
    with Client() as client:
        Holders(client, wishes, Diary(folder / f"holders-{number}.jsonl")).work()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
