"""`python -m tests.chaos.holders FOLDER NUMBER`: a process that reserves, holds and releases.

It writes a line for each use of a slot. It may be killed and started again: it then requests the same reservations.
The time of a use is taken *before* the check that the lease is held, so the lease was held at that time.
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
"""After this time without its reservation in a list, an accepted request is sent again: a restore may have lost it."""
PATIENCE_SECONDS: Final = 5.0
THREADS: Final = 24


WALL = "CHAOS_WALL"
"""Environment variable with the host's wall clock minus its monotonic clock.

All processes share the monotonic clock, and the wall clock of this process may be shifted.
"""


def read_host_time() -> float:
    """Return the seconds since the epoch by the clock of the host."""
    return float(os.environ[WALL]) + time.monotonic()


class UseLog:
    """A file with lines of JSON. Each line is written without a buffer, so that a kill loses no line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._guard = Lock()

    def write(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields}).encode() + b"\n"
        with self._guard:
            self._file.write(line)


class Holders:
    """All holders of one process: its reservations, and a thread for each leased one."""

    def __init__(self, client: Client, requests: list[dict[str, Any]], log: UseLog) -> None:
        self._client, self._log = client, log
        self._requests = {request["id"]: request for request in requests}
        self._busy: set[str] = set()
        self._unasked = dict(self._requests)
        self._open = set(self._requests)
        self._seen_at: dict[str, float] = {}
        """Reservation -> when it was last accepted or in a list (monotonic)."""
        self._pause = Event()

    def work(self) -> None:
        """Send each request when it is due, and hold each lease, until the process is killed.

        The loop does not end with the last reservation, because a restore may bring back one that has ended.
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
        """Send the requests that are due and not accepted yet; a request without an answer is sent again."""
        due = [request["document"] for request in self._unasked.values() if request["after"] <= elapsed]
        for start in range(0, len(due), CHUNK):
            self._reserve_chunk(due[start : start + CHUNK])

    def _reserve_chunk(self, chunk: list[dict[str, Any]]) -> None:
        try:
            answers = self._client.reserve_many(chunk, timeout=PATIENCE_SECONDS)  # type: ignore[arg-type]
        except LeaseholdError as error:
            self._log.write("unanswered", at=read_host_time(), error=str(error))
            return
        for answer in answers:
            if answer.ok and answer.reservation is not None:
                self._log.write("accepted", reservation=answer.reservation, at=read_host_time())
                self._unasked.pop(answer.reservation, None)
                self._seen_at[answer.reservation] = time.monotonic()

    def _look(self) -> list[Reservation]:
        """Return this process's leased reservations. One that ended counts again if a list contains it as open."""
        try:
            rows = [row for row in self._client.list() if row.id in self._requests]
        except LeaseholdError:
            # Without a list no reservation is missing from it.
            self._seen_at = dict.fromkeys(self._seen_at, time.monotonic())
            return []
        for row in rows:
            if row.is_over and row.id in self._open:
                self._open.remove(row.id)
                self._log.write("ended", reservation=row.id, at=read_host_time())
        self._open |= {row.id for row in rows if not row.is_over}
        self._note_missing({row.id for row in rows})
        return [row for row in rows if row.phase in {"leased", "revoking"}]

    def _note_missing(self, listed: set[str]) -> None:
        now = time.monotonic()
        self._seen_at |= dict.fromkeys(listed, now)
        for name in self._open - self._unasked.keys():
            if now - self._seen_at.get(name, now) > MISSING_SECONDS:
                self._unasked[name] = self._requests[name]

    def _hold(self, name: str) -> None:
        request = self._requests[name]
        try:
            with self._client.lease(wait=WAIT_SECONDS, wait_anyway=True, **request["document"]) as lease:
                self._use(lease, request)
        except LeaseholdError as error:
            self._log.write("failed", reservation=name, at=read_host_time(), error=str(error))
        finally:
            self._busy.discard(name)

    def _use(self, lease: Lease, request: dict[str, Any]) -> None:
        until = time.monotonic() + request["seconds"]
        while time.monotonic() < until and not (lease.revoking.is_set() and request["stops_early"]):
            at = read_host_time()
            if not lease.is_held:
                return
            for placement in lease.placements:
                self._log.write(
                    "use",
                    at=at,
                    reservation=lease.id,
                    token=lease.token,
                    component=placement.component,
                    slot=placement.slot,
                    machine=placement.instance_id,
                    cpus=placement.resources.get("cpus", 0),
                )
            self._pause.wait(USE_SECONDS)


def main(folder: Path, number: str) -> None:
    """Send the requests of `requests-NUMBER.json`, hold their leases, and write `holders-NUMBER.jsonl`."""
    requests = json.loads((folder / f"requests-{number}.json").read_text())
    with Client() as client:
        Holders(client, requests, UseLog(folder / f"holders-{number}.jsonl")).work()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
