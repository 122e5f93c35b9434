"""The schema revisions that this program knows, and the check of a database's revision. The module needs no SQLAlchemy,
so that a short command can check an SQLite database without the time for that import.
"""

import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Final

_VERSIONS: Final = Path(__file__).parent / "migrations" / "versions"
TABLE: Final = "alembic_version"
SELECT_REVISION: Final = f"SELECT version_num FROM {TABLE}"  # noqa: S608 - a constant
_HAS_TABLE: Final = f"SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = '{TABLE}'"  # noqa: S608 - a constant
_SQLITE: Final = "sqlite:///"
_BUSY_SECONDS: Final = 10.0


@cache
def list_revisions() -> tuple[str, ...]:
    """Return the schema revisions that this program knows, oldest first. The program needs a database at the last of
    them.
    """
    return tuple(sorted(path.name.partition("_")[0] for path in _VERSIONS.glob("[0-9]*_*.py")))


def judge_revision(current: str | None) -> str | None:
    """Return a text about what is wrong with a database at the schema revision `current` (None: the database has no
    tables), and the remedy. Return None if nothing is wrong.
    """
    known = list_revisions()
    if current is None:
        return "the database has no tables of Leasehold: run `leasehold migrate`"
    if current == known[-1]:
        return None
    if current in known:
        return (
            f"the database's schema is older than this program (revision {current}, the program needs {known[-1]}):"
            " run `leasehold migrate`"
        )
    # Revisions are numbers with leading zeros, so their texts can be compared.
    if current < known[0]:
        return (
            f"the database's schema is older than this program (revision {current}, the program migrates from"
            f" {known[0]} on): run `leasehold migrate` of the last commit before release 0.1.0 first"
        )
    return (
        f"the database's schema is newer than this program (revision {current}, the program knows up to {known[-1]}):"
        " upgrade Leasehold on this host"
    )


def find_sqlite_file(url: str) -> Path | None:
    """Return the path of the file if `url` is that of an SQLite database, without options and escaped characters.
    Return None for any other URL.
    """
    path = url.removeprefix(_SQLITE)
    return Path(path) if path not in {url, "", ":memory:"} and not {"?", "%"} & {*path} else None


def make_sqlite_url(path: Path) -> str:
    """Return the URL of an SQLite database. Characters that a URL treats otherwise are escaped."""
    return f"{_SQLITE}{path}".translate({ord(char): f"%{ord(char):02X}" for char in "%?#"})


def find_fault_of_file(path: Path) -> str | None:
    """Return why the tables of this SQLite database do not fit this program, and the remedy; None if they fit or the
    database cannot be read.
    """
    try:
        with closing(open_file(path)) as connection:
            has_table = connection.execute(_HAS_TABLE).fetchone() is not None
            row = connection.execute(SELECT_REVISION).fetchone() if has_table else None
    except sqlite3.Error:
        return None
    return judge_revision(None if row is None else row[0])


def open_file(path: Path) -> sqlite3.Connection:
    """Open an SQLite database that exists. Raises sqlite3.Error if it cannot be opened."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=_BUSY_SECONDS)
