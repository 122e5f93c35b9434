"""Limit how many cores of this machine the processes of each lease may use.

There are three ways, best first: (1) `cpu.max` of cgroup v2, which limits exactly; (2) CPU affinity, which limits to
whole cores; (3) no limit. The agent reports which way it uses.
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
"""Smallest quota of `cpu.max` that the kernel accepts, in microseconds."""


class Limits(Protocol):
    """The interface of a way to limit the cores of a lease's processes. Its classes are `Cgroups` and `Affinity`. In
    both methods `lease` is a name that no other lease has. The methods raise OSError if the system refuses a limit.
    """

    name: str

    def apply(self, lease: str, pids: Iterable[int], cores: float, before: float) -> None:
        """Limit the processes `pids` of a lease, together with their children, to the number of `cores`. Processes that
        have ended are skipped.

        `before`: the sum of the cores of all leases that precede this lease on the host. `Affinity` finds the cores of
        the lease by this sum, so that different leases get different cores.
        """

    def lift(self, lease: str, pids: Iterable[int]) -> None:
        """Remove the limit of the cores of a lease: the processes `pids` may use all cores of the machine again."""


class Cgroups:
    """Limits cores exactly: each lease has a cgroup of version 2 with `cpu.max`, in a folder that was delegated to the
    agent.
    """

    def __init__(self, root: Path) -> None:
        """Prepare the cgroup folder `root`. Raises OSError if it is no cgroup folder, has no cpu controller, or is not
        writable.
        """
        self.name, self._root = f"cgroup {root}", root
        if "cpu" not in (root / "cgroup.controllers").read_text(encoding="utf-8").split():
            raise OSError(f"the cgroup {root} has no cpu controller")
        _write(root / "cgroup.subtree_control", "+cpu")

    def apply(self, lease: str, pids: Iterable[int], cores: float, before: float) -> None:  # noqa: ARG002 - as in Limits
        """Limit the processes of a lease to its number of cores by moving them to the lease's own cgroup. `before` is
        not used: the kernel chooses the cores.
        """
        group = self._group(lease)
        group.mkdir(exist_ok=True)
        _write(group / "cpu.max", f"{max(round(cores * PERIOD), LEAST_QUOTA)} {PERIOD}")
        self._move(pids, group)

    def lift(self, lease: str, pids: Iterable[int]) -> None:  # noqa: ARG002 - as in Limits
        """Remove the cgroup of a lease. First its processes are moved to a cgroup without a limit, because only a
        cgroup without processes can be removed.
        """
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
    """Limits processes to whole cores by CPU affinity. The number of cores is rounded up and is at least one.

    Different leases get different cores while the machine has enough cores.
    """

    name = "affinity"

    def __init__(self) -> None:
        self._cpus = sorted(os.sched_getaffinity(0))

    def apply(self, lease: str, pids: Iterable[int], cores: float, before: float) -> None:  # noqa: ARG002 - as in Limits
        """Limit the processes of a lease to whole CPUs by CPU affinity. Their number is `cores`, rounded up. They are
        the CPUs of the machine that follow the first `before` ones; after the last CPU, the first ones follow again.
        """
        first, count = floor(before), max(ceil(cores - 1e-9), 1)
        self._set(pids, {self._cpus[(first + number) % len(self._cpus)] for number in range(count)})

    def lift(self, lease: str, pids: Iterable[int]) -> None:  # noqa: ARG002 - as in Limits
        """Let the processes of a lease use all cores of the machine again."""
        self._set(pids, set(self._cpus))

    @staticmethod
    def _set(pids: Iterable[int], cpus: set[int]) -> None:
        for pid in pids:
            for thread in list_threads(pid):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread, cpus)


def find_limits(cgroup: Path | None) -> Limits | None:
    """Return the best way to limit cores: cgroups if a folder is given, else CPU affinity. Return None if there is no
    folder and the system does not support CPU affinity. Raises OSError if the folder cannot be used.
    """
    if cgroup is not None:
        return Cgroups(cgroup)
    return Affinity() if hasattr(os, "sched_setaffinity") else None


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
