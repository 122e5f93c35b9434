"""The files of the commands of one slot, by which a new agent finds what an earlier one has begun and ends it.

`guard/` has the socket of the guard. `leases/ID/` has the record of one lease, the output and the outcome of its
command, and the files that the command itself reads. A record is written before a command is asked for, so that a lease
without a record has no command here. What is left of a command whose guard is dead or stopped is its process group, its
cgroup, and the processes that have its tag.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

import msgspec

from leasehold.client.models import LeaseKey
from leasehold.private_files import make_private_folder
from leasehold.work import guard
from leasehold.work.guard_client import Exited, NotStarted
from leasehold.work.ports import Outcome

RECORD: Final = "lease.json"
NOTICE: Final = "notice.json"
PEERS: Final = "peers.json"
KEPT: Final = 20
"""Folders of ended commands that stay, for people who look for their output."""


class Record(msgspec.Struct, kw_only=True):
    """What is known of the command of a lease. It contains neither arguments nor environment."""

    reservation: str
    component: str
    token: int
    run: str
    """The run of the agent that asked for the command."""
    tag: str
    is_started: bool = False
    """Whether the guard was asked to start the command. Nothing of the command can run otherwise."""
    pid: int = 0
    begun: int | None = None
    cgroup: str | None = None
    after: list[str] | None = None
    """The program that ends what the command leaves outside of its processes, such as a container; None: none."""
    stop_signal: str = "TERM"
    grace: float = 0.0
    offline_timeout: float | None = None
    devices: dict[str, list[str]] = {}
    """Resource -> the ids of the devices that the command has."""
    notices: str | None = None
    """Folder of the files that the command reads; None: the folder of the lease."""
    outcome: Outcome | None = None
    is_reported: bool = False

    @property
    def key(self) -> LeaseKey:
        return LeaseKey(self.reservation, self.component, self.token)


def make_lease_id(key: LeaseKey) -> str:
    """Return a short name that no other lease has."""
    return hashlib.sha256(f"{key.reservation}/{key.component}/{key.token}".encode()).hexdigest()[:16]


class Records:
    """The records of one slot in the folder `root`."""

    def __init__(self, root: Path) -> None:
        self.guard_folder = root / "guard"
        self._leases = root / "leases"
        make_private_folder(root)
        self._leases.mkdir(mode=0o700, exist_ok=True)

    def folder(self, key: LeaseKey) -> Path:
        return self._leases / make_lease_id(key)

    def load(self) -> list[Record]:
        """Return all records that can be read."""
        found = []
        for path in self._leases.glob(f"*/{RECORD}"):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=Record))
            except (OSError, msgspec.MsgspecError):
                continue
        return found

    def begin(self, key: LeaseKey, run: str) -> Record:
        """Write the record of a lease whose command will be asked for, and return it. Raises OSError."""
        record = Record(reservation=key.reservation, component=key.component, token=key.token, run=run, tag=token_hex())
        self.folder(key).mkdir(mode=0o700, exist_ok=True)
        self.save(record)
        return record

    def save(self, record: Record) -> None:
        """Write a record. Raises OSError."""
        write_file(self.folder(record.key) / RECORD, msgspec.json.encode(record))

    def read_outcome(self, key: LeaseKey) -> Exited | NotStarted | None:
        """Return what the guard has written about the end of a command; None: nothing."""
        try:
            data = (self.folder(key) / guard.OUTCOME).read_bytes()
            return msgspec.json.decode(data, type=Exited | NotStarted)
        except (OSError, msgspec.MsgspecError):
            return None

    def make_notices(self, record: Record, user: str | None) -> Path:
        """Return the folder of the files that the command reads. Another user gets a folder of its own, which only its
        group may read, because the state of the agent is private. Raises OSError.
        """
        if user is None or os.geteuid() != 0:
            # The guard reports that only root may take another user.
            return self.folder(record.key)
        import pwd  # noqa: PLC0415 - missing on Windows, where no host runs

        try:
            group = pwd.getpwnam(user).pw_gid
        except KeyError:
            # The guard reports that there is no such user.
            return self.folder(record.key)
        record.notices = tempfile.mkdtemp(prefix="leasehold-notices-")
        os.chown(record.notices, -1, group)
        Path(record.notices).chmod(0o750)
        return Path(record.notices)

    def write_notice(self, record: Record, notice: Mapping[str, Any]) -> None:
        """Replace the notice of a command. Raises OSError."""
        self._write_shared(record, NOTICE, json.dumps(notice))

    def write_peers(self, record: Record, text: str) -> None:
        """Write the list of the leases of the command's reservation. Raises OSError."""
        self._write_shared(record, PEERS, text)

    def _write_shared(self, record: Record, name: str, text: str) -> None:
        folder = self.folder(record.key) if record.notices is None else Path(record.notices)
        write_file(folder / name, text.encode(), 0o600 if record.notices is None else 0o640, folder.stat().st_gid)

    def end(self, record: Record) -> None:
        """Remove the files of an ended command that are of no further use."""
        if record.notices is not None:
            shutil.rmtree(record.notices, ignore_errors=True)

    def prune(self, needed: set[LeaseKey]) -> None:
        """Remove the folders of ended commands, except those of the last KEPT ones and of the leases `needed`."""
        names = {make_lease_id(key) for key in needed}
        found = sorted(self._list_ended(names), reverse=True)
        for _, folder in found[KEPT:]:
            shutil.rmtree(folder, ignore_errors=True)

    def _list_ended(self, needed: set[str]) -> Iterator[tuple[float, Path]]:
        for folder in self._leases.iterdir():
            if folder.name not in needed:
                yield folder.stat().st_mtime, folder


def write_file(path: Path, data: bytes, mode: int = 0o600, group: int | None = None) -> None:
    """Replace a file in one step, so that a reader never sees a part of it. Raises OSError."""
    draft = path.with_name(f".{path.name}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    # A full disk may take a part of the data: then the file goes on writing, and raises.
    with os.fdopen(descriptor, "wb") as file:
        if group is not None and mode != 0o600:  # noqa: PLR2004 - readable by this user only
            os.fchmod(descriptor, mode)
            os.fchown(descriptor, -1, group)
        file.write(data)
    draft.replace(path)


_PASSES: Final = 25
_PAUSE_SECONDS: Final = 0.04


def end_remains(record: Record, *, is_own: bool) -> int:
    """Kill the processes of a command. Return how many resist after about a second. `is_own`: whether the command was
    started during this run of the agent. On a system without /proc the process group may belong to others later.
    """
    left = 0
    for _ in range(_PASSES):
        found = list(find_remains(record))
        left = len(found)
        if record.cgroup is not None and guard.kill_cgroup(record.cgroup):
            left = max(left, 1)
        for each in found:
            guard.kill(each)
        if not _SEES_PROCESSES and record.pid and is_own:
            left = int(guard.kill_group(record.pid))
        if not left:
            break
        time.sleep(_PAUSE_SECONDS)
    if record.after is not None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(record.after, capture_output=True, timeout=guard.AFTER_SECONDS, check=False)  # noqa: S603 - ours
    if record.cgroup is not None and not left:
        guard.remove_cgroup(record.cgroup)
    return left


_SEES_PROCESSES: Final = bool(guard.list_processes())


def find_remains(record: Record) -> Iterator[guard.Process]:
    """Yield the running processes of a command."""
    processes = guard.list_processes()
    leader = processes.get(record.pid)
    # The id of a group stays taken while the group has members; without any, another process may have it.
    begun = record.begun if record.pid and (leader is None or leader.started == record.begun) else None
    for process in processes.values():
        is_in_group = begun is not None and record.pid in {process.group, process.session} and process.started >= begun
        if is_in_group or guard.has_tag(process.pid, record.tag):
            yield process
