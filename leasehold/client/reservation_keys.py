"""Keys of reservations: a client that signs makes one for each reservation that it submits, and proves itself by it.

The stack gets the key's hash only. The keys are kept in a private file of the user, so that another process of the same
user on this host can speak for the holder: `leasehold reserve`, and later `leasehold release`.
docs/reference/client.md, "Keys".
"""

import hashlib
import os
import re
import secrets
import sqlite3
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from leasehold.errors import Fault, Refused

KEYS_VARIABLE: Final = "LEASEHOLD_KEYS"
KEPT_SECONDS: Final = 90 * 86400.0
"""A key is dropped from the file so long after it was used last."""
KEY_VERBS: Final = frozenset({"release", "renew", "confirm", "fail", "decline", "surrender", "suspend", "resume"})
"""The verbs that carry the key."""
_KEY: Final = re.compile(r"[A-Za-z0-9_-]{32,200}")
_BUSY_SECONDS: Final = 5.0
_KEY_BYTES: Final = 32
_MOST_NAMES: Final = 500
"""Names in one statement of SQLite."""


def find_keys_file() -> Path:
    """The file named by LEASEHOLD_KEYS, else `leasehold/keys` in the folder for the state of the user's programs."""
    named = os.environ.get(KEYS_VARIABLE)
    if named:
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "leasehold" / "keys"


def hash_key(key: str) -> str:
    """What is sent with `submit` in place of the key."""
    return hashlib.sha256(key.encode()).hexdigest()


class Keys:
    """The keys of one user by reservation id; for any number of threads and processes.

    `makes`: a reservation that is submitted without a key gets one. A client that signs its messages does so. Where
    messages need no signature, holders on other hosts work with the token alone, so no key is made unasked.

    A file that cannot be used (no home, a read-only disk, another user's file) is left alone: then the keys are in
    memory, and this object alone has them.
    """

    def __init__(self, path: Path | None = None, *, makes: bool = True) -> None:
        self._path, self._makes = path, makes
        self._in_memory: dict[str, str] = {}

    def make(self, names: Iterable[str]) -> dict[str, str]:
        """A key for each of these reservations: the one that is kept under its id, or else a new one."""
        fresh = {name: secrets.token_urlsafe(_KEY_BYTES) for name in names}
        return self._keep(fresh, replace=False)

    def put(self, name: str, key: str) -> None:
        """Keep this key, which the caller made."""
        self._keep({name: key}, replace=True)

    def hide(self, documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The documents of reservations as they are sent: with the hash of a key in place of the key. A document with
        neither gets a key, if `makes`. Raises Refused for what is no key.
        """
        _check_keys(documents)
        given = {each["id"]: each["key"] for each in documents if _has_texts(each, "id", "key")}
        for name, key in given.items():
            self.put(name, key)
        bare = [each["id"] for each in documents if _has_texts(each, "id") and not each.keys() & {"key", "key_hash"}]
        keys = (self.make(bare) if bare and self._makes else {}) | given
        return [_hide_key(each, keys) for each in documents]

    def find(self, name: str) -> str | None:
        """The key of this reservation; None: no client of this user made one."""
        if name in self._in_memory:
            return self._in_memory[name]
        with suppress(OSError, RuntimeError, sqlite3.Error), closing(self._open(create=False)) as database:
            row = database.execute("SELECT key FROM keys WHERE reservation = ?", (name,)).fetchone()
            return None if row is None else str(row[0])
        return None

    def _keep(self, fresh: dict[str, str], *, replace: bool) -> dict[str, str]:
        try:
            with closing(self._open(create=True)) as database:
                return _write(database, fresh, replace=replace)
        except (OSError, RuntimeError, sqlite3.Error):
            kept = fresh if replace else {**fresh, **{name: self._in_memory.get(name, fresh[name]) for name in fresh}}
            self._in_memory.update(kept)
            return kept

    def _open(self, *, create: bool) -> sqlite3.Connection:
        """Raises OSError, RuntimeError (no home) or sqlite3.Error if the file cannot be used or is not private."""
        path = self._path or find_keys_file()
        if create:
            _create(path)
        _check_private(path)
        database = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None)
        # A crash of the program loses nothing; only one of the host could, which then has lost the holders, too.
        database.execute("PRAGMA synchronous = OFF")
        return database


def _has_texts(document: Mapping[str, Any], *names: str) -> bool:
    """What is no text is refused by the stack, with a better message than there could be here."""
    return all(isinstance(document.get(name), str) for name in names)


def _check_keys(documents: list[dict[str, Any]]) -> None:
    wrong = [
        Fault(index, "key", "a key of 32 to 200 letters, digits, - and _", "***")
        for index, each in enumerate(documents)
        if "key" in each and not (isinstance(each["key"], str) and _KEY.fullmatch(each["key"]))
    ]
    if wrong:
        raise Refused(wrong)


def _hide_key(document: dict[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    key = None if "key_hash" in document else keys.get(str(document["id"]))
    if key is None:
        return document
    return {name: value for name, value in document.items() if name != "key"} | {"key_hash": hash_key(key)}


def _create(path: Path) -> None:
    """An empty file of mode 0600, if there is none."""
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _check_private(path: Path) -> None:
    """Raise PermissionError for a file of another user; take the rights of all others away from one's own."""
    status = path.stat()
    if not hasattr(os, "getuid"):
        return
    if status.st_uid != os.getuid() or not stat.S_ISREG(status.st_mode):
        raise PermissionError(f"{path} is not a file of this user")
    if status.st_mode & 0o077:
        path.chmod(0o600)


def _write(database: sqlite3.Connection, fresh: dict[str, str], *, replace: bool) -> dict[str, str]:
    """Write the keys and return the ones that are kept now."""
    now, names = time.time(), list(fresh)
    database.execute("BEGIN IMMEDIATE")
    database.execute("CREATE TABLE IF NOT EXISTS keys (reservation TEXT PRIMARY KEY, key TEXT, used_at REAL)")
    change = "key = excluded.key, used_at = excluded.used_at" if replace else "used_at = excluded.used_at"
    database.executemany(
        f"INSERT INTO keys VALUES (?, ?, ?) ON CONFLICT (reservation) DO UPDATE SET {change}",  # noqa: S608 - ours
        [(name, key, now) for name, key in fresh.items()],
    )
    database.execute("DELETE FROM keys WHERE used_at < ?", (now - KEPT_SECONDS,))
    kept: dict[str, str] = {}
    for start in range(0, len(names), _MOST_NAMES):
        some = names[start : start + _MOST_NAMES]
        marks = ", ".join("?" * len(some))
        kept |= database.execute(f"SELECT reservation, key FROM keys WHERE reservation IN ({marks})", some)  # noqa: S608
    database.execute("COMMIT")
    return kept
