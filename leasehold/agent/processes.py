"""Find the processes of each lease on this machine by the notes that `leasehold host exec` writes for the agent.

Each process has a note. It identifies the process by id and start time, so that a later process with the same id is not
mistaken for it.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec

from leasehold.process_identity import PROC, find_start, read_stat

_PARENT: Final = 1
"""Index of the parent's id in /proc/PID/stat, counted after the name in parentheses."""


class Note(msgspec.Struct, frozen=True):
    """A record that a process, and all processes that it starts, belong to one instance of a reservation."""

    reservation: str
    component: str
    pid: int
    started: int | None = None
    """Start time of the process in kernel ticks since boot; None on systems without /proc."""


def notes_folder(state: Path, slot: str) -> Path:
    """Return the folder with the notes for one slot."""
    return state / "processes" / slot


def write_note(folder: Path, reservation: str, component: str, pid: int) -> Path:
    """Write the file by which the host agent knows that a process, and all processes that it starts, belong to a lease.
    Raises OSError if the file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    note, path = Note(reservation, component, pid, find_start(pid)), folder / f"{pid}.json"
    draft = folder / f".{uuid4().hex}"
    draft.write_bytes(msgspec.json.encode(note))
    draft.replace(path)
    return path


def read_notes(folder: Path) -> list[Note]:
    """Return the notes (which process belongs to which lease) of running processes, in the order of the process ids.
    Delete the notes of processes that have ended.
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


def list_tree(pids: Iterable[int]) -> list[int]:
    """Return the ids of the given processes and of all their descendants."""
    children: dict[int, list[int]] = {}
    for each in PROC.glob("[0-9]*"):
        if fields := read_stat(int(each.name)):
            children.setdefault(int(fields[_PARENT]), []).append(int(each.name))
    found = list(dict.fromkeys(pids))
    for pid in found:
        found += [child for child in children.get(pid, ()) if child not in found]
    return found


def list_threads(pid: int) -> list[int]:
    """Return the threads of a process; none if it has ended."""
    try:
        return [int(each.name) for each in (PROC / str(pid) / "task").iterdir()]
    except OSError:
        return []
