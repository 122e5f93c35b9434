"""Limits of cores on this machine: how much of its cpus the processes of each lease may use, by what the system has.

`cpu.max` of cgroup v2 in a folder of cgroups that is ours, exactly; else the affinity of every process, in whole cores;
else nothing, which is reported.
"""

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from math import ceil, floor
from pathlib import Path
from typing import Final, Protocol

from leasehold.agent.processes import list_threads

PERIOD: Final = 100_000
LEAST_QUOTA: Final = 1_000
"""Microseconds of `cpu.max`; the kernel takes no less."""


class Limits(Protocol):
    """One way to limit processes. `lease` is a unique name of a lease; raises OSError."""

    name: str

    def apply(self, lease: str, pids: Iterable[int], cores: float, before: float) -> None:
        """Limit these processes and their children to this number of cores together. `before`: the cores of the leases
        before this one, so that not all get the same ones. Processes that are gone are passed over.
        """

    def lift(self, lease: str, pids: Iterable[int]) -> None:
        """They may use what they like again."""


class Cgroups:
    """A group for each lease in a folder of cgroup v2 that was delegated to us, with `cpu.max`."""

    def __init__(self, root: Path) -> None:
        """Raises OSError for a folder that is no such thing, or may not be written."""
        self.name, self._root = f"cgroup {root}", root
        if "cpu" not in (root / "cgroup.controllers").read_text(encoding="utf-8").split():
            raise OSError(f"{root} has no cpu controller")
        _write(root / "cgroup.subtree_control", "+cpu")

    def apply(self, lease: str, pids: Iterable[int], cores: float, before: float) -> None:  # noqa: ARG002 - its contract
        """See Limits."""
        group = self._group(lease)
        group.mkdir(exist_ok=True)
        _write(group / "cpu.max", f"{max(round(cores * PERIOD), LEAST_QUOTA)} {PERIOD}")
        self._move(pids, group)

    def lift(self, lease: str, pids: Iterable[int]) -> None:  # noqa: ARG002 - its contract
        """See Limits. A group in which something still runs cannot go: what runs is moved to one without a limit."""
        group, free = self._group(lease), self._root / "leasehold-free"
        free.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            self._move(map(int, (group / "cgroup.procs").read_text(encoding="utf-8").split()), free)
            group.rmdir()

    def _group(self, lease: str) -> Path:
        return self._root / f"leasehold-{hashlib.sha256(lease.encode()).hexdigest()[:16]}"

    @staticmethod
    def _move(pids: Iterable[int], group: Path) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                _write(group / "cgroup.procs", str(pid))


class Affinity:
    """Each process may run on whole cores only, rounded up, one at least: those of different leases lie apart as long
    as there are enough.
    """

    name = "affinity"

    def __init__(self) -> None:
        self._cpus = sorted(os.sched_getaffinity(0))

    def apply(self, lease: str, pids: Iterable[int], cores: float, before: float) -> None:  # noqa: ARG002 - its contract
        """See Limits."""
        first, count = floor(before), max(ceil(cores - 1e-9), 1)
        self._set(pids, {self._cpus[(first + number) % len(self._cpus)] for number in range(count)})

    def lift(self, lease: str, pids: Iterable[int]) -> None:  # noqa: ARG002 - its contract
        """See Limits."""
        self._set(pids, set(self._cpus))

    @staticmethod
    def _set(pids: Iterable[int], cpus: set[int]) -> None:
        for pid in pids:
            for thread in list_threads(pid):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread, cpus)


def find_limits(cgroup: Path | None) -> Limits | None:
    """By cgroups where a folder of them is given, else by affinity where the system knows that, else None. Raises
    OSError for a folder that does not serve.
    """
    if cgroup is not None:
        return Cgroups(cgroup)
    return Affinity() if hasattr(os, "sched_setaffinity") else None


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
