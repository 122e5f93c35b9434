"""Limit the cores of the leases on a host: find the processes of each lease, and limit them to the cores that the
scheduler decided.

There are three ways to limit, best first: (1) `cpu.max` of cgroup v2, which limits exactly; (2) CPU affinity, which
limits to whole cores; (3) no limit. The agent reports which way it uses.

The processes of a lease are found by the notes that `leasehold host exec` writes for the agent. A note identifies a
process by its id and start time, so that a later process with the same id is not mistaken for it.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from math import ceil, floor
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import uuid4

import msgspec

from leasehold.client.models import Hosted
from leasehold.process_identity import PROC, find_start
from leasehold.work.guard import list_processes


class Note(msgspec.Struct, frozen=True):
    """A note that one process, and all processes that it starts, belong to a component of a reservation."""

    reservation: str
    component: str
    pid: int
    started: int | None = None
    """Start time of the process in kernel ticks since boot; on a system without /proc, in seconds since the epoch; None
    if unknown.
    """


def notes_folder(state: Path, slot: str) -> Path:
    return state / "processes" / slot


def write_note(folder: Path, reservation: str, component: str, pid: int) -> Path:
    """Write a note that the process `pid`, and all processes that it starts, belong to a lease: that of this component
    of this reservation. Return the path of the note. Raises OSError if the note cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    note, path = Note(reservation, component, pid, find_start(pid)), folder / f"{pid}.json"
    draft = folder / f".{uuid4().hex}"
    draft.write_bytes(msgspec.json.encode(note))
    draft.replace(path)
    return path


def read_notes(folder: Path) -> list[Note]:
    """Return the notes about running processes, in the order of the process ids. Delete the notes about processes that
    have ended.
    """
    alive = []
    for path in folder.glob("*.json"):
        try:
            note = msgspec.json.decode(path.read_bytes(), type=Note)
        except (OSError, msgspec.MsgspecError):
            continue
        if _is_alive(note):
            alive.append(note)
        else:
            path.unlink(missing_ok=True)
    return sorted(alive, key=lambda note: note.pid)


def _is_alive(note: Note) -> bool:
    if note.started is not None:
        return find_start(note.pid) == note.started
    try:
        os.kill(note.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def list_children() -> dict[int, list[int]]:
    """Return the children of each process of this machine by its id; {} on a system without /proc."""
    children: dict[int, list[int]] = {}
    for process in list_processes().values():
        children.setdefault(process.parent, []).append(process.pid)
    return children


def list_tree(pids: Iterable[int], children: Mapping[int, Sequence[int]] | None = None) -> list[int]:
    """Return these processes with all that descend from them. `children`: as of `list_children`; None: those of now."""
    children = list_children() if children is None else children
    found = list(dict.fromkeys(pids))
    for pid in found:
        found += [child for child in children.get(pid, ()) if child not in found]
    return found


def list_threads(pid: int) -> list[int]:
    """Return the ids of the threads of a process; [] if the process has ended."""
    try:
        return [int(each.name) for each in (PROC / str(pid) / "task").iterdir()]
    except OSError:
        return []


PERIOD: Final = 100_000
LEAST_QUOTA: Final = 1_000
"""Smallest quota of `cpu.max` that the kernel accepts, in microseconds."""
HELD: Final = "held"
"""The cgroup in that of a lease for its processes: only a cgroup without processes shares a controller of memory."""


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
        controllers = (root / "cgroup.controllers").read_text(encoding="utf-8").split()
        if "cpu" not in controllers:
            raise OSError(f"the cgroup {root} has no cpu controller")
        # With that of memory, the guard sees why the kernel has ended a command.
        wanted = (each for each in ("cpu", "memory") if each in controllers)
        _write(root / "cgroup.subtree_control", " ".join(f"+{each}" for each in wanted))

    def apply(self, lease: str, pids: Iterable[int], cores: float, before: float) -> None:  # noqa: ARG002 - as in Limits
        """Limit the processes of a lease to its number of cores by moving them to a cgroup in that of the lease.
        `before` is not used: the kernel chooses the cores.
        """
        group = self._group(lease)
        held = group / HELD
        held.mkdir(parents=True, exist_ok=True)
        _write(group / "cpu.max", f"{max(round(cores * PERIOD), LEAST_QUOTA)} {PERIOD}")
        # The guard has put the processes of a command into a cgroup beside it.
        self._move((pid for pid in pids if not self._is_in(pid, group)), held)

    def lift(self, lease: str, pids: Iterable[int]) -> None:  # noqa: ARG002 - as in Limits
        """Remove the cgroup of a lease. First its processes are moved to a cgroup without a limit, because only a
        cgroup without processes can be removed.
        """
        group, free = self._group(lease), self._root / "leasehold-free"
        free.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            held = group / HELD
            self._move(map(int, (held / "cgroup.procs").read_text(encoding="utf-8").split()), free)
            held.rmdir()
        with suppress(FileNotFoundError):
            if any(each.is_dir() for each in group.iterdir()):
                # The cgroup of a command is in it, which the guard removes with this one.
                _write(group / "cpu.max", f"max {PERIOD}")
            else:
                group.rmdir()

    def _group(self, lease: str) -> Path:
        return self._root / f"leasehold-{hashlib.sha256(lease.encode()).hexdigest()[:16]}"

    @staticmethod
    def _move(pids: Iterable[int], group: Path) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                _write(group / "cgroup.procs", str(pid))

    @staticmethod
    def _is_in(pid: int, group: Path) -> bool:
        with suppress(OSError):
            lines = (PROC / str(pid) / "cgroup").read_text(encoding="utf-8").splitlines()
            return any(group.name in line.split("/")[:-1] for line in lines if line.startswith("0::"))
        return False


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


UNKNOWN_SECONDS: Final = 10.0
"""Seconds after which the agent reports a lease as unlimited because none of its processes is known."""
LOOK_SECONDS: Final = 5.0
"""Seconds after which all limits are applied again, because a process that was started during a change may have none,
and ended processes are noticed.
"""
Key = tuple[str, str, int]
"""Identity of a lease: (reservation, component, fencing token)."""


class Enforcer:
    """Limits the processes of each lease on one host to the number of cores that the lease has. `report` is called once
    each time the limit of a lease changes, and once for each failure to set a limit.
    """

    def __init__(
        self,
        folder: Path,
        limits: Limits | None,
        report: Callable[[Mapping[str, Any]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make the enforcer of one host. `folder` has the notes in which `leasehold host exec` records the processes of
        each lease. `limits`: the way in which the cores are limited; None: this system cannot limit cores.
        """
        self._folder, self._limits, self._report, self._clock = folder, limits, report, clock
        self._applied: dict[Key, tuple[tuple[int, ...], float, float]] = {}
        """Lease -> the limit that was applied, as (1) the known processes of the lease, (2) its number of cores, (3)
        the sum of the cores of the leases before it, which decides which cores the lease gets.
        """
        self._stamp: int | None = None
        """The time of the last change of `folder` before the last look at its notes."""
        self._look_at = 0.0
        self._seen: dict[Key, float] = {}
        self._reported: dict[Key, object] = {}

    def start(self) -> None:
        """Report in which way this host limits the cores of leases: the name of `limits`, or "nothing"."""
        self._report({"event": "limits", "by": "nothing" if self._limits is None else self._limits.name})

    def watch(self, held: Sequence[Hosted]) -> None:
        """Limit the leases `held` for which there is a new note; all of them, if that was not done for LOOK_SECONDS."""
        # speed: the agent calls this twice a second, and each command of a lease has a note.
        is_due = self._clock() >= self._look_at
        if is_due or self._read_stamp() != self._stamp:
            self.enforce(held, is_thorough=is_due)

    def _read_stamp(self) -> int | None:
        try:
            return self._folder.stat().st_mtime_ns
        except OSError:
            return None

    def enforce(self, held: Sequence[Hosted], *, is_thorough: bool = False) -> None:
        """Limit the leases `held` that are new or whose number of cores changed, and remove the limits of leases that
        have ended.

        `is_thorough`: apply the limit of every lease again, because a process that was started during an earlier change
        may have no limit.
        """
        self._stamp = self._read_stamp()
        if is_thorough:
            self._look_at = self._clock() + LOOK_SECONDS
        notes, before = read_notes(self._folder), 0.0
        children: Mapping[int, Sequence[int]] | None = None
        present = {(each.reservation, each.component, each.token): each for each in held if each.cores is not None}
        for key in [key for key in self._applied if key not in present]:
            self._lift(key)
        for key, lease in sorted(present.items(), key=lambda each: (each[1].assigned_at, each[0])):
            roots = tuple(note.pid for note in notes if (note.reservation, note.component) == key[:2])
            wanted = (roots, lease.cores or 0.0, before)
            before += lease.cores or 0.0
            if not roots:
                if self._clock() - self._seen.setdefault(key, self._clock()) >= UNKNOWN_SECONDS:
                    self._report_once(
                        key,
                        "unlimited",
                        why="no process of this lease is known here: start its processes with `leasehold host exec`",
                    )
            elif is_thorough or self._applied.get(key) != wanted:
                children = list_children() if children is None else children
                self._apply(key, *wanted, children)
        self._seen = {key: at for key, at in self._seen.items() if key in present}
        self._reported = {key: last for key, last in self._reported.items() if key in present}

    def lift_all(self) -> None:
        """Remove the limits of cores of all leases on this host."""
        for key in list(self._applied):
            self._lift(key)

    def _apply(
        self, key: Key, roots: tuple[int, ...], cores: float, before: float, children: Mapping[int, Sequence[int]]
    ) -> None:
        if self._limits is None:
            self._report_once(key, "unlimited", why="this system has neither cgroups nor affinity")
            return
        try:
            self._limits.apply(_name(key), list_tree(roots, children), cores, before)
        except OSError as error:
            self._report_once(key, "unlimited", why=f"the system refused the limit by {self._limits.name}: {error}")
            return
        self._applied[key] = (roots, cores, before)
        self._report_once(key, "limited", cores=cores, by=self._limits.name)

    def _lift(self, key: Key) -> None:
        roots, _, _ = self._applied.pop(key)
        if self._limits is None:
            return
        try:
            self._limits.lift(_name(key), list_tree(roots))
        except OSError as error:
            self._report({"event": "unlifted", "reservation": key[0], "component": key[1], "why": str(error)})

    def _report_once(self, key: Key, event: str, **detail: object) -> None:
        if self._reported.get(key) != (event, detail):
            self._reported[key] = (event, detail)
            self._report({"event": event, "reservation": key[0], "component": key[1], **detail})


def _name(key: Key) -> str:
    return f"{key[0]}/{key[1]}/{key[2]}"
