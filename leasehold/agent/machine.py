"""The identity and the resources of this machine, as the agent of a static pool's host reports them."""

import hashlib
import hmac
import os
import socket
from pathlib import Path
from typing import Final
from uuid import uuid4

MACHINE_ID: Final = Path("/etc/machine-id")
STATE_FILE: Final = "machine-id"
MIB: Final = 1024 * 1024


def find_machine_id(state: Path, source: Path = MACHINE_ID) -> str:
    """Return an id that stays the same for this machine: a digest of the content of `source`, or if `source` has no id,
    a random id that is stored in the folder `state`.

    Only a digest is reported, because machine-id(5) requires systemd's id to stay confidential. Raises OSError if there
    is no id and none can be stored.
    """
    known = _read(source)
    if known:
        return hmac.new(known.encode(), b"leasehold", hashlib.sha256).hexdigest()[:32]
    kept = state / STATE_FILE
    return _read(kept) or _keep(kept)


def _read(path: Path) -> str | None:
    """Return the id in this file; None if the file is missing or empty, as in container images."""
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


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


def find_resources() -> dict[str, float]:
    """Return the resources of this machine. `cpus`: the number of CPUs that this process may use. `memory_mib`: the
    whole memory of the machine in MiB.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"cpus": cpus, "memory_mib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MIB}


def find_slot_name() -> str:
    """Return the name of this host without its domain: the default name of the host's slot."""
    return socket.gethostname().partition(".")[0]
