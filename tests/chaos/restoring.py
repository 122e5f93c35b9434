"""Make a backup during a chaos run and restore it later, while processes and faults go on."""

import json
import random
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import redis

from scheduler.model.reservations import is_over
from scheduler.ports import StoreUnavailableError, ViewUnavailableError
from testbed.processes import Process
from tests.chaos.evidence import RESTORES
from tests.chaos.hosts import Hosts
from tests.chaos.points import RESTORE_POINTS, give_order

FILE: Final = "chaos.backup"
LOOK_SECONDS: Final = 0.05
REPEATS: Final = 8
LOST_LEASES: Final = 5
"""The restore waits for this number of leases after the backup, so that there are leases to lose."""
MOST_LOST_SECONDS: Final = 30.0
"""Limit of that wait: on a busy machine leases are rare."""
WAYS: Final = ("plain", "plain", "killed", "killed", "flushed", "without redis")
CLOCK: Final = "restore"
"""Name of the restoring process and of its wall clock."""
SHIFTS: Final = (0, 0, -600, -20, 20, 600)
_FAULTS: Final = (StoreUnavailableError, ViewUnavailableError, redis.RedisError, OSError)


class Restorer:
    """One backup and its restore, by the commands of an operator. Writes its observations to `restores.jsonl`."""

    def __init__(self, hosts: Hosts, dice: random.Random, seconds: float) -> None:
        self._hosts = hosts
        self._backup_at, self._lost_seconds = dice.uniform(0.05, 0.25) * seconds, dice.uniform(0.25, 0.4) * seconds
        self._way, self._shift = dice.choice(WAYS), dice.choice(SHIFTS)
        self._point = dice.choice(RESTORE_POINTS)
        self._is_in_place = dice.random() < 0.5
        """Whether an interrupted restore is continued with `--in-place`."""
        self._backed_up_at = 0.0
        self._is_marked = False
        self._marked_at = 0.0
        """When the current mark in Redis was first seen."""
        self._remembered: dict[str, bool] = {}
        """Reservation that the view in Redis had when the mark was set → whether it was over then or later.

        Work that began before the mark may end a reservation before the restore reads Redis.
        """
        self.is_restoring = False
        """Whether the restore runs; no other fault may then delete data from Redis."""
        self.faults: list[str] = []
        self._pause = threading.Event()
        self._thread = threading.Thread(target=self._work, name="restore", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Wait until the restore is over."""
        self._thread.join()
        assert (self._hosts.folder / RESTORES).exists(), "the thread of the restore has failed"

    def _work(self) -> None:
        self._pause.wait(self._backup_at)
        self._back_up()
        first = self._read_token()
        self._pause.wait(self._lost_seconds)
        until = time.monotonic() + MOST_LOST_SECONDS
        while self._read_token() < first + LOST_LEASES and time.monotonic() < until:
            self._pause.wait(LOOK_SECONDS)
        self.is_restoring = True
        self._record(f"restore, {self._way}, by a clock that is off by {self._shift:+d} s")
        self._restore()
        self._record("restored")
        self.is_restoring = False

    def _read_token(self) -> int:
        """Return the highest token of the database; 0 if it cannot be read."""
        with suppress(StoreUnavailableError):
            return self._hosts.services.ports.store.read_cluster().token
        return 0

    def _record(self, what: str) -> None:
        self.faults.append(f"{datetime.now(UTC).strftime('%H:%M:%S.%f')[:-3]} restore: {what}")

    def _back_up(self) -> None:
        """Make a backup. It is repeated, because other faults cut the connections of the command."""
        for _ in range(REPEATS):
            self._backed_up_at = time.time()
            process = self._start("backup", "backup", str(self._file), "--force")
            while process.is_alive:
                self._pause.wait(LOOK_SECONDS)
            if process.has_succeeded:
                break
        self._record("backup")

    @property
    def _file(self) -> Path:
        return self._hosts.folder / FILE

    def _start(self, name: str, *words: str) -> Process:
        return self._hosts.run_command(name, *words)

    def _restore(self) -> None:
        self._hosts.shifts.set(CLOCK, self._shift)
        self._marked_at = time.time()
        words = ["restore", str(self._file)]
        if self._way == "killed":
            give_order(self._hosts.points, self._point, "kill")
        elif self._way == "flushed":
            with suppress(*_FAULTS):
                self._hosts.redis.flushall()
        elif self._way == "without redis":
            self._hosts.redis_server.kill()
            words.append("--without-redis")
        process = self._repeat(words)
        if self._way == "without redis":
            self._hosts.redis_server.restart()
        self._write(process)

    def _repeat(self, words: Sequence[str]) -> Process:
        """Run the command until it succeeds (docs/how-to/back-up-and-restore.md); return the last process."""
        process = self._run(words)
        for _ in range(REPEATS):
            if process.has_succeeded:
                break
            if self._way == "killed" and self._is_in_place and self._was_struck():
                words = ["restore", "--in-place"]
            process = self._run(words)
        return process

    def _run(self, words: Sequence[str]) -> Process:
        process = self._start(CLOCK, *words, "--yes", "--json")
        while process.is_alive:
            self._look_at_mark()
            self._pause.wait(LOOK_SECONDS)
        return process

    def _was_struck(self) -> bool:
        return not (self._hosts.points / self._point).exists()

    def _look_at_mark(self) -> None:
        """Record when the mark was set, the reservations that Redis had then, and which of them are over now."""
        record, view_cache = self._hosts.services.ports.record, self._hosts.services.ports.view_cache
        if self._way == "without redis" or record is None:
            return
        with suppress(*_FAULTS):
            is_marked = record.read().is_restoring
            found = {row.id: is_over(row) for row in view_cache.read_kept().values()} if is_marked else {}
            if is_marked and not self._is_marked:
                self._remembered, self._marked_at = found, time.time()
            self._remembered |= {name: True for name in self._remembered.keys() & found.keys() if found[name]}
            self._is_marked = is_marked

    def _write(self, process: Process) -> None:
        """Write the result of the restore, and the leases of the database right after it."""
        line: dict[str, Any] = {"backup": self._backed_up_at, "marked": self._marked_at, "ended": time.time()}
        line["remembered"] = sorted(name for name, over in self._remembered.items() if not over)
        if process.has_succeeded:
            result = json.loads(_last_line(process))
            line |= {"term": result["term"], "token": result["token"], "held": self._find_held()}
        else:
            line["fault"] = _last_line(process)
        with (self._hosts.folder / RESTORES).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _find_held(self) -> list[tuple[str, int]]:
        while True:
            with suppress(StoreUnavailableError):
                rows = self._hosts.services.ports.store.find_reservations(phases=["leased", "revoking"], limit=10**6)
                return [(row.id, row.token) for row in rows]
            self._pause.wait(LOOK_SECONDS)


def _last_line(process: Process) -> str:
    return (process.read_log(1_000_000).splitlines() or [""])[-1]
