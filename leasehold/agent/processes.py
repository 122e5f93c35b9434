"""Find the processes of each lease on this machine by the notes that `leasehold host exec` writes for the agent.

A note identifies a process by its id and start time, so that a later process with the same id is not mistaken for it.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

import msgspec

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
