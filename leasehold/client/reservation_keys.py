"""Keys of reservations. A client that signs its messages makes a key for each reservation that it submits, and sends
only the hash of the key.

The key proves that a later command comes from the holder of the reservation's lease. Keys are stored in a private file
of the user, so that another process of this user on the same host can act for the holder: `leasehold reserve`, and
later `leasehold release`. See docs/reference/client.md, "Keys".
"""

import hashlib
import json
import os
import re
import secrets
import sqlite3
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from leasehold.errors import Fault, Refused
from scheduler.model.validation import is_name

KEYS_VARIABLE: Final = "LEASEHOLD_KEYS"
KEPT_SECONDS: Final = 90 * 86400.0
"""Seconds after its last use for which a key is kept in the file."""
_KEY: Final = re.compile(r"[A-Za-z0-9_-]{32,200}")
_BUSY_SECONDS: Final = 5.0
_KEY_BYTES: Final = 32


def find_keys_file() -> Path:
    """Return the path of the file with keys: the value of LEASEHOLD_KEYS, else `leasehold/keys` in the user's state
    folder.
    """
    named = os.environ.get(KEYS_VARIABLE)
    if named:
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "leasehold" / "keys"


def hash_key(key: str) -> str:
    """Return the SHA-256 of a key in hexadecimal, which is sent with `submit` in place of the key."""
    return hashlib.sha256(key.encode()).hexdigest()


class Keys:
    """The store of one user's keys of reservations. Safe for threads and processes.

    The key of a reservation is a secret that its holder must show, in addition to the fencing token of the lease, to
    use the lease: for example to release it.

    `makes`: whether a key is made for a reservation that is submitted without a key. It is True for clients that sign
    their messages. Where messages need no signature, it is False: a holder on another host, which does not have this
    store, can then use its lease with the token alone. If the file cannot be used (no home folder, a read-only disk,
    another user's file), keys are kept in the memory of this object.
    """

    def __init__(self, path: Path | None = None, *, makes: bool = True) -> None:
        self._path, self._makes = path, makes
        self._in_memory: dict[str, str] = {}

    def make(self, names: Iterable[str]) -> dict[str, str]:
        """Return reservation id -> secret key of the holder for reservations with these ids: the stored key, or a new
        one, which is stored.
        """
        fresh = {name: secrets.token_urlsafe(_KEY_BYTES) for name in names}
        return self._keep(fresh, replace=False)

    def put(self, name: str, key: str) -> None:
        """Store `key`, which the caller has chosen, as the key of this reservation. It replaces a stored key."""
        self._keep({name: key}, replace=True)

    def hide(self, documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the documents (fields of reservations) with each key replaced by its hash. If `makes` is set, a
        document with neither a key nor a hash gets the hash of a new key. Raise Refused for an invalid key.
        """
        if not self._makes and not any("key" in each for each in documents):
            return documents
        wrong = [
            Fault(index, "key", "a key of 32 to 200 letters, digits, - and _", "***")
            for index, each in enumerate(documents)
            if "key" in each and not (isinstance(each["key"], str) and _KEY.fullmatch(each["key"]))
        ]
        wrong += [
            Fault(index, "key_hash", "either a key or its hash", "both")
            for index, each in enumerate(documents)
            if {"key", "key_hash"} <= each.keys()
        ]
        if wrong:
            raise Refused(wrong)
        # No key is stored for another id, which the stack refuses.
        named = [each for each in documents if is_name(each["id"])]
        given = {each["id"]: each["key"] for each in named if "key" in each}
        for name, key in given.items():
            self.put(name, key)
        bare = [each["id"] for each in named if not each.keys() & {"key", "key_hash"}]
        keys = (self.make(bare) if bare and self._makes else {}) | given
        hidden = []
        for each in documents:
            key = None if "key_hash" in each else keys.get(str(each["id"]), each.get("key"))
            bare_fields = {name: value for name, value in each.items() if name != "key"}
            hidden.append(each if key is None else {**bare_fields, "key_hash": hash_key(key)})
        return hidden

    def find(self, name: str) -> str | None:
        """Return the key of this reservation, or None if no client of this user has stored one."""
        return self.find_all([name]).get(name)

    def find_all(self, names: Iterable[str]) -> dict[str, str]:
        """Return the keys of these reservations, as reservation id -> key. Reservations whose keys no client of this
        user has stored are omitted.
        """
        wanted = list(names)
        found: dict[str, str] = {}
        with suppress(OSError, RuntimeError, sqlite3.Error), closing(self._open(create=False)) as database:
            found = _read(database, wanted)
        return found | {name: self._in_memory[name] for name in wanted if name in self._in_memory}

    def _keep(self, fresh: dict[str, str], *, replace: bool) -> dict[str, str]:
        try:
            with closing(self._open(create=True)) as database:
                return _write(database, fresh, replace=replace)
        except (OSError, RuntimeError, sqlite3.Error):
            kept = fresh if replace else {**fresh, **{name: self._in_memory.get(name, fresh[name]) for name in fresh}}
            self._in_memory.update(kept)
            return kept

    def _open(self, *, create: bool) -> sqlite3.Connection:
        """Open the file with keys. Raise OSError, RuntimeError (no home folder) or sqlite3.Error if it cannot be used
        or other users may read it.
        """
        path = self._path or find_keys_file()
        if create:
            _create(path)
        _check_private(path)
        return sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)


def _create(path: Path) -> None:
    """Create the file for keys with the mode 0600, and its folders, if it does not exist."""
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _check_private(path: Path) -> None:
    """Raise PermissionError if the file belongs to another user or is no regular file. If other users have rights to a
    file of this user, remove these rights.
    """
    status = path.stat()
    if not hasattr(os, "getuid"):
        return
    if status.st_uid != os.getuid() or not stat.S_ISREG(status.st_mode):
        raise PermissionError(f"{path}: expected a regular file of this user")
    if status.st_mode & 0o077:
        path.chmod(0o600)


def _write(database: sqlite3.Connection, fresh: dict[str, str], *, replace: bool) -> dict[str, str]:
    """Store new keys (reservation id -> key), and return the keys that are stored now. `replace`: overwrite stored
    keys.
    """
    now, names = time.time(), list(fresh)
    # A crash of the program loses no key. A crash of the host may, but it ends the holders on it as well.
    database.execute("PRAGMA synchronous = OFF")
    database.execute("BEGIN IMMEDIATE")
    database.execute("CREATE TABLE IF NOT EXISTS keys (reservation TEXT PRIMARY KEY, key TEXT, used_at REAL)")
    change = "key = excluded.key, used_at = excluded.used_at" if replace else "used_at = excluded.used_at"
    database.executemany(
        f"INSERT INTO keys VALUES (?, ?, ?) ON CONFLICT (reservation) DO UPDATE SET {change}",  # noqa: S608 - ours
        [(name, key, now) for name, key in fresh.items()],
    )
    database.execute("DELETE FROM keys WHERE used_at < ?", (now - KEPT_SECONDS,))
    kept = _read(database, names)
    database.execute("COMMIT")
    return kept


def _read(database: sqlite3.Connection, names: Sequence[str]) -> dict[str, str]:
    # As JSON, because SQLite takes a limited number of values, and no text that UTF-8 cannot encode.
    wanted = json.dumps(names, default=str)
    found = database.execute(
        "SELECT reservation, key FROM keys WHERE reservation IN (SELECT value FROM json_each(?))", (wanted,)
    )
    return dict(found.fetchall())
