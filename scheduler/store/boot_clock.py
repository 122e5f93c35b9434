"""Cluster time on SQLite: a base time stored in the database, plus the time that has passed since in this boot of the
host.

The monotonic clock is the same for all processes of one boot, so neither a process with a wrong wall clock nor a
jump of the host's wall clock changes cluster time. The first process of a boot reads the wall clock, once.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from sqlalchemy import Engine, update

from scheduler.protocol.clock import read_monotonic
from scheduler.store import tables
from scheduler.store.cluster import CLUSTER_ID, StoredCluster, find_newest, read_stored, select_cluster

SELECT: Final = select_cluster()
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_SYSCTL: Final = ("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")
_SET_BASE: Final = update(tables.cluster).where(tables.cluster.c.id == CLUSTER_ID)


@cache
def read_boot_id() -> str:
    """Return an id that changes with every boot of this host. Return "unknown" on systems that have no such id."""
    try:
        if sys.platform == "darwin":
            done = subprocess.run(_SYSCTL, capture_output=True, text=True, check=True)  # noqa: S603 - a constant
            return done.stdout.strip()
        return _BOOT_ID.read_text().strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


class BootClock:
    """The clock that gives this process the cluster time of one SQLite database file."""

    def __init__(
        self,
        boot: Callable[[], str] = read_boot_id,
        monotonic: Callable[[], float] = read_monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._boot, self._monotonic, self._wall = boot, monotonic, wall
        self._has_base = False
        self._ahead: float | None = None
        """Cluster time minus the monotonic clock, in seconds, at the last reading; None before the first."""

    def prepare(self, engine: Engine) -> None:
        """Store a base of cluster time for this boot of the host, unless the database has one: the id of the boot,
        cluster time, and the monotonic clock at that time.

        The base is stored in a transaction of its own, so a rollback by the caller does not undo it. Once this process
        has seen a base of this boot, the method does nothing.
        """
        if self._has_base:
            return
        with engine.connect() as connection, connection.begin():
            self._has_base = self._fits(read_stored(connection, SELECT))
        if not self._has_base:
            self._set_base(engine)

    def read(self, stored: StoredCluster) -> float:
        """Return cluster time, computed from the stored base and the monotonic clock.

        If the base belongs to another boot (the file was replaced, or this user may not write), this process continues
        from the cluster time that it knows.
        """
        elapsed = self._monotonic()
        if self._fits(stored) and stored.base_time is not None and stored.base_monotonic is not None:
            self._ahead = stored.base_time - stored.base_monotonic  # promise: monotonic-time
        else:
            self._has_base = False
            if self._ahead is None:
                self._ahead = max(self._wall(), stored.ticked_at) - elapsed
        return self._ahead + elapsed

    def _set_base(self, engine: Engine) -> None:
        with engine.connect().execution_options(writes=True) as connection, connection.begin():
            # Test again under the write lock: another process may have stored a base meanwhile.
            if not self._fits(read_stored(connection, SELECT)):
                elapsed = self._monotonic()
                own = self._wall() if self._ahead is None else self._ahead + elapsed
                base = max(own, find_newest(connection))  # promise: time-after-reboot
                connection.execute(_SET_BASE.values(boot=self._boot(), base_time=base, base_monotonic=elapsed))
        self._has_base = True

    def _fits(self, stored: StoredCluster) -> bool:
        """Return whether the base of cluster time was stored during the present boot of the host."""
        base = stored.base_monotonic
        return stored.boot == self._boot() and base is not None and base <= self._monotonic()
