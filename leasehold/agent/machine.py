"""The identity and the resources of this machine, as the agent of a static pool's host reports them."""

import hashlib
import hmac
import os
import re
import socket
from collections.abc import Iterator
from math import floor, inf
from pathlib import Path, PurePosixPath
from typing import Final
from uuid import uuid4

MACHINE_ID: Final = Path("/etc/machine-id")
MIB: Final = 1024 * 1024
NO_ID: Final = "uninitialized"
"""Content of machine-id in images of machines that have not booted yet, see machine-id(5). Every clone of such an image
has it.
"""
_CPU_DIGITS: Final = 1000
"""A number of cpus is rounded down to a whole number of this part."""


def find_machine_id(state: Path, source: Path = MACHINE_ID) -> str:
    """Return an id that stays the same for this machine: a digest of the content of `source`, or if `source` has no id,
    a random id that is stored in the folder `state`.

    Only a digest is reported, because machine-id(5) requires systemd's id to stay confidential. Raises OSError if there
    is no id and none can be stored.
    """
    known = _read(source)
    if known:
        return hmac.new(known.encode(), b"leasehold", hashlib.sha256).hexdigest()[:32]
    kept = state / "machine-id"
    return _read(kept) or _keep(kept)


def _read(path: Path) -> str | None:
    """Return the id in this file; None if the file is missing or has no id, as in images of containers and machines."""
    try:
        found = path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
        # Docker makes a folder in place of a missing file that is mounted.
        return None
    return None if found == NO_ID or not found.strip("0-") else found


def _keep(path: Path) -> str:
    """Store a random id in the file `path` and return the stored id. If two processes do this at once, both return the
    id that was stored first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{uuid4().hex}")
    draft.write_text(uuid4().hex, encoding="utf-8")
    try:
        # Unlike a rename, a link does not replace an existing file.
        os.link(draft, path)
    except FileExistsError:
        if _read(path) is None:
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return _read(path) or _keep(path)


def find_state_folder() -> Path:
    """Return the folder for the data that this user's programs keep, by the XDG rules: `$XDG_STATE_HOME/leasehold`, or
    `~/.local/state/leasehold`.
    """
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "leasehold"


def find_resources(root: Path = Path("/")) -> dict[str, float]:
    """Return the resources that this process may use. `cpus`: the least of the machine's CPUs, the affinity of this
    process, and the CPU limits of its cgroup and of all cgroups above. `memory_mib`: the least of the machine's memory
    in MiB and the memory limits of these cgroups. `root`: the folder that contains `proc` and the mounted cgroups.
    """
    cpus: float = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cpus = min(cpus, len(os.sched_getaffinity(0)))
    memory: float = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for group in _list_cgroups(root):
        cpus = min(cpus, _read_cpu_limit(group))
        # The kernel computes the last one from cgroups above, which a container may not see.
        above = (
            line.split()[-1] for line in _list_lines(group / "memory.stat") if line.startswith("hierarchical_memory_")
        )
        found = [_read_word(group / name) for name in ("memory.max", "memory.limit_in_bytes")]
        memory = min(memory, min((int(word) for word in (*found, *above) if word.isdecimal()), default=inf))
    # Rounded down: a host must not offer more than its cgroup lets it use.
    part = floor(cpus * _CPU_DIGITS + 1e-6) / _CPU_DIGITS
    return {"cpus": int(part) if part == int(part) else part, "memory_mib": int(memory // MIB)}


def _list_cgroups(root: Path) -> Iterator[Path]:
    """Yield the folders of the cgroups, of version 1 and 2, to which this process belongs, and of all cgroups above
    them that are visible here.
    """
    members: dict[str, PurePosixPath] = {}
    for line in _list_lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2) if line.count(":") > 1 else ("", "-", "/")
        # The group of version 2 has no controllers in this file.
        members |= {name: PurePosixPath(path) for name in controllers.split(",")}
    for line in _list_lines(root / "proc/self/mountinfo"):
        fields, _, more = line.partition(" - ")
        words, kind = fields.split(), more.split()
        if len(words) < 5 or len(kind) < 3 or kind[0] not in {"cgroup", "cgroup2"}:  # noqa: PLR2004 - see proc(5)
            continue
        names = {""} if kind[0] == "cgroup2" else set(kind[2].split(","))
        top = PurePosixPath(_unescape(words[3]))
        mounted = root / _unescape(words[4]).lstrip("/")
        for group in {members[name] for name in names if name in members}:
            # In a container without a namespace of its own for cgroups, only the part below the mount is visible.
            inner = group.relative_to(top) if group.is_relative_to(top) and ".." not in group.parts else PurePosixPath()
            yield from (mounted / each for each in (inner, *inner.parents))


def _read_cpu_limit(group: Path) -> float:
    """Return how many CPUs a cgroup may use; infinite without a limit, or if none can be read."""
    words = _read_word(group / "cpu.max").split()
    words = words or [_read_word(group / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    match words:
        case [quota, period] if quota.isdecimal() and period.isdecimal() and int(period) and int(quota):
            return int(quota) / int(period)
        case _:
            return inf


def _read_word(path: Path) -> str:
    return next(iter(_list_lines(path)), "").strip()


def _list_lines(path: Path) -> list[str]:
    """Return the lines of a file of the kernel; [] if this process cannot read it, for example on macOS."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _unescape(word: str) -> str:
    """Return a path of mountinfo without the octal numbers in place of spaces and the like, see proc(5)."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def make_run(root: Path = Path("/")) -> str:
    """Return a new id for a run of the agent, `<boot>-<random>`. `boot`: a digest of the id of this boot of the
    machine; "0" if the system has none.
    """
    return f"{find_boot(root)}-{uuid4().hex}"


def find_boot(root: Path = Path("/")) -> str:
    """Return a digest of the id of this boot of the machine; "0" if the system has none."""
    boot = _read_word(root / "proc/sys/kernel/random/boot_id")
    return hashlib.sha256(boot.encode()).hexdigest()[:12] if boot else "0"


def is_of_this_boot(run: str, root: Path = Path("/")) -> bool:
    """Return whether this machine may have made the id of this run of an agent since it booted."""
    boot = run.partition("-")[0]
    return boot in {"0", find_boot(root)}


def find_slot_name() -> str:
    """Return the name of this host without its domain: the default name of the host's slot."""
    return socket.gethostname().partition(".")[0]
