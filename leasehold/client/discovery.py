"""Where a stack runs: `.leasehold/run.json`, kept by `leasehold up` and looked for from the working folder upwards.

The supervisor holds a lock on the file beside it for as long as anything of the stack is alive; the kernel
lets go of it when the last of them dies. So a stale run.json is recognised without guessing by pids.

Commands obey run.json: they connect to its addresses and end the process that it names. So a folder that belongs to
another user, or that other users may write to, is refused (leasehold/private_files.py).
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from leasehold.common.names import DEFAULT_PREFIX
from leasehold.errors import NoStack
from leasehold.private_files import open_file, open_folder
from leasehold.process_identity import ProcessIdentity

FOLDER: Final = ".leasehold"
RUN_FILE: Final = "run.json"
LOCK_FILE: Final = "lock"
URL_VARIABLE: Final = "LEASEHOLD_BROKER__URL"
VIEW_URL_VARIABLE: Final = "LEASEHOLD_VIEW__URL"
PREFIX_VARIABLE: Final = "LEASEHOLD_VIEW__PREFIX"
_HAS_LOCKS: Final = find_spec("fcntl") is not None


@dataclass(frozen=True)
class RunningStack:
    """The contents of run.json: where the parts of a stack listen and which processes they are.

    `phase` is `starting` until all of it answers, `running`, or `stopping`.
    """

    folder: Path
    pid: int
    phase: str
    broker_url: str
    database_url: str
    environment: dict[str, str] = field(default_factory=dict)
    """The environment of its processes; other commands use it too."""
    urls: dict[str, str] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    started_at: float = 0.0
    processes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The process of `pid` as `supervisor`, and all of `pids`: the id, the start time and the command of each. A signal
    goes to a process only while its start time is this one.
    """

    @property
    def supervisor(self) -> ProcessIdentity | None:
        """The process that `leasehold down` ends; None in a run.json of an older version."""
        try:
            return ProcessIdentity(**self.processes["supervisor"])
        except (KeyError, TypeError):
            return None


def find_running(start: Path | None = None) -> RunningStack | None:
    """The running stack of this folder, or of the nearest one above it that has one. Raises UntrustedFolder."""
    for folder in list_folders(start):
        found = read_running(folder)
        if found is not None:
            return found
    return None


def list_folders(start: Path | None = None) -> Iterator[Path]:
    """Where a stack's folder may be, from `start` (default: the working folder) upwards."""
    here = (start or Path.cwd()).absolute()
    yield from (folder / FOLDER for folder in (here, *here.parents))


def read_running(folder: Path) -> RunningStack | None:
    """The stack that runs out of this `.leasehold` folder; None if none runs, even if a stale file is there.

    Raises UntrustedFolder. Without fcntl, as on Windows, no stack runs anywhere.
    """
    if not _HAS_LOCKS:
        return None
    with open_folder(folder) as descriptor:
        if descriptor is None:
            return None
        document = _read_document(folder, descriptor) if _is_held(folder, descriptor) else None
    if document is None:
        return None
    known = {name: document[name] for name in RunningStack.__dataclass_fields__ if name in document}
    try:
        return RunningStack(folder=folder, **known)
    except TypeError:
        return None


def _read_document(folder: Path, descriptor: int) -> dict[str, Any] | None:
    try:
        with os.fdopen(open_file(RUN_FILE, descriptor, folder), encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _is_held(folder: Path, descriptor: int) -> bool:
    try:
        return _is_locked(open_file(LOCK_FILE, descriptor, folder))
    except OSError:
        return False


def is_locked(path: Path) -> bool:
    """Whether a live process holds this lock file; one that is not there is not held."""
    if not _HAS_LOCKS:
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    return _is_locked(descriptor)


def _is_locked(descriptor: int) -> bool:
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@dataclass(frozen=True)
class Address:
    """Where a client finds a stack: the broker, the Redis of the view, and what the view's keys begin with."""

    broker_url: str
    view_url: str
    prefix: str


def find_address(url: str | None = None, view_url: str | None = None, prefix: str | None = None) -> Address:
    """Return the given value, else that of the environment, else that of the running stack.

    A URL that was given stands alone: of the environment or of a stack it would get another one's view. Raises
    NoStack if no source has the URL of the broker, UntrustedFolder if only the folder of another user has it.
    """
    said: Mapping[str, str] = {} if url else os.environ
    broker = url or said.get(URL_VARIABLE)
    if not broker:
        running = find_running()
        if running is None:
            raise NoStack(
                f"no stack runs here or in a folder above: start one with `leasehold up`, or set {URL_VARIABLE}"
            )
        broker, said = running.broker_url, {**running.environment, **os.environ}
    return Address(
        broker_url=broker,
        view_url=view_url or said.get(VIEW_URL_VARIABLE) or broker,
        prefix=prefix or said.get(PREFIX_VARIABLE) or DEFAULT_PREFIX,
    )
