"""The folders of cgroup v2 in which commands run, if the agent has a delegated one."""

import os
import re
from pathlib import Path


def list_mounts(root: Path = Path("/")) -> list[Path]:
    """Return where cgroup v2 is mounted; [] on other systems than Linux."""
    try:
        text = (root / "proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        fields, _, more = line.partition(" - ")
        if more.startswith("cgroup2 "):
            # Octal numbers stand for spaces and the like, see proc(5).
            found.append(Path(re.sub(r"\\([0-7]{3})", lambda each: chr(int(each[1], 8)), fields.split()[4])))
    return found


def check_delegated(folder: Path, root: Path = Path("/")) -> None:
    """Raise OSError if commands cannot run in cgroups in this folder: it is in no cgroup v2, or not writable."""
    place = folder.resolve()
    if not any(place.is_relative_to(mount) for mount in list_mounts(root)):
        raise OSError(f"{folder} is in no cgroup of version 2")
    if not os.access(place, os.W_OK | os.X_OK) or not os.access(place / "cgroup.procs", os.W_OK):
        raise OSError(f"{folder} is not writable")
