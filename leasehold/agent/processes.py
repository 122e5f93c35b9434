"""Which processes of this machine belong to which lease: a note a process, left by `leasehold host exec` for the agent.

A note names the process by its id and by when it started, so that another one that gets the id later is not taken
for it.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec

from leasehold.process_identity import PROC, find_start, read_stat

_PARENT: Final = 1
"""Field of /proc/PID/stat, counted behind the name in parentheses."""


class Note(msgspec.Struct, frozen=True):
    """This process, and all that it starts, belong to this instance of this reservation."""

    reservation: str
    component: str
    pid: int
    started: int | None = None
    """In the kernel's ticks since it booted; None where there is no /proc."""


def notes_folder(state: Path, slot: str) -> Path:
    """Where the notes for one slot are."""
    return state / "processes" / slot


def write_note(folder: Path, reservation: str, component: str, pid: int) -> Path:
    """Leave a note. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    note, path = Note(reservation, component, pid, find_start(pid)), folder / f"{pid}.json"
    draft = folder / f".{uuid4().hex}"
    draft.write_bytes(msgspec.json.encode(note))
    draft.replace(path)
    return path


def read_notes(folder: Path) -> list[Note]:
    """The notes of processes that are alive, in the order of their ids; those of others are thrown away."""
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
    """These processes and all that descend from them."""
    children: dict[int, list[int]] = {}
    for each in PROC.glob("[0-9]*"):
        if fields := read_stat(int(each.name)):
            children.setdefault(int(fields[_PARENT]), []).append(int(each.name))
    found = list(dict.fromkeys(pids))
    for pid in found:
        found += [child for child in children.get(pid, ()) if child not in found]
    return found


def list_threads(pid: int) -> list[int]:
    """The threads of a process; none when it is gone."""
    try:
        return [int(each.name) for each in (PROC / str(pid) / "task").iterdir()]
    except OSError:
        return []
