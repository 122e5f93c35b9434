"""Find the running stack of a folder by the file `.leasehold/run.json`, which `leasehold up` writes. The search goes
from the working folder upwards.

The processes of a stack hold a lock on a file beside run.json; the kernel releases it when the last process ends. So a
run.json without the lock is stale. Commands connect to the addresses in run.json, and end the process that run.json
names. Therefore a folder is refused if it belongs to another user or if other users may write to it
(leasehold/private_files.py).
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from leasehold.errors import NoStack
from leasehold.private_files import open_file, open_folder
from leasehold.process_identity import ProcessIdentity
from scheduler.protocol.names import DEFAULT_PREFIX

FOLDER: Final = ".leasehold"
RUN_FILE: Final = "run.json"
LOCK_FILE: Final = "lock"
URL_VARIABLE: Final = "LEASEHOLD_BROKER__URL"
VIEW_URL_VARIABLE: Final = "LEASEHOLD_VIEW__URL"
PREFIX_VARIABLE: Final = "LEASEHOLD_VIEW__PREFIX"
_HAS_LOCKS: Final = find_spec("fcntl") is not None


@dataclass(frozen=True)
class RunningStack:
    """The content of run.json: the addresses and processes of a running stack. `phase` is `starting` until all parts
    answer, then `running`, and `stopping` at the end.
    """

    folder: Path
    pid: int
    phase: str
    broker_url: str
    database_url: str
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables of the stack's processes. Commands in the folder use them too."""
    urls: dict[str, str] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)
    started_at: float = 0.0
    processes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Name -> id, start time and command of each process of the stack; `supervisor` is the main process. A process gets
    a signal only if its start time is the recorded one.
    """

    @property
    def supervisor(self) -> ProcessIdentity | None:
        """The process that `leasehold down` ends; None if an older version wrote run.json."""
        try:
            return ProcessIdentity(**self.processes["supervisor"])
        except (KeyError, TypeError):
            return None


def find_running(start: Path | None = None) -> RunningStack | None:
    """Return the stack that runs in the folder `start` (default: the working folder) or in the nearest folder above it;
    None if no stack runs there. Raise UntrustedFolder if another user owns such a `.leasehold` folder or may write to
    it.
    """
    for folder in list_folders(start):
        found = read_running(folder)
        if found is not None:
            return found
    return None


def list_folders(start: Path | None = None) -> Iterator[Path]:
    """Yield the `.leasehold` folders in which a stack may run, from the folder `start` (default: the working folder)
    upwards.
    """
    here = (start or Path.cwd()).absolute()
    yield from (folder / FOLDER for folder in (here, *here.parents))


def read_running(folder: Path) -> RunningStack | None:
    """Return the stack that runs in this `.leasehold` folder, or None if no stack runs there. A stale run.json counts
    as no stack. Raise UntrustedFolder if another user owns the folder or may write to it.

    On systems without fcntl, such as Windows, no stack can run.
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
    """Return whether a running process has a lock on this file. A missing file has no lock."""
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
    """What a client needs to find a stack: the URL of the broker, the URL of the view's Redis, and the prefix of the
    view's keys.
    """

    broker_url: str
    view_url: str
    prefix: str


def find_address(url: str | None = None, view_url: str | None = None, prefix: str | None = None) -> Address:
    """Return the address of the stack: from the arguments, else from the environment, else from the running stack.

    If `url` is given, the environment and the running stack are ignored, because they may name the view of another
    stack. Raise NoStack if no URL is found, and UntrustedFolder if only a folder of another user has one.
    """
    variables: Mapping[str, str] = {} if url else os.environ
    broker = url or variables.get(URL_VARIABLE)
    if not broker:
        running = find_running()
        if running is None:
            raise NoStack(
                f"no stack runs here or in a folder above: start one with `leasehold up`, or set {URL_VARIABLE}"
            )
        broker, variables = running.broker_url, {**running.environment, **os.environ}
    return Address(
        broker_url=broker,
        view_url=view_url or variables.get(VIEW_URL_VARIABLE) or broker,
        prefix=prefix or variables.get(PREFIX_VARIABLE) or DEFAULT_PREFIX,
    )
