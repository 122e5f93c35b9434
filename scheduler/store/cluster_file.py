"""Reads the row about the cluster from an SQLite file without SQLAlchemy, for a process that only checks whether the
database belongs to its cluster. The import of SQLAlchemy would take half of the start of such a process.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from scheduler.ports import ClusterNumbers, Store, StoreUnavailableError
from scheduler.store.revisions import find_sqlite_file, open_file
from scheduler.store.seen import HighestSeen

_SELECT: Final = (
    "SELECT cluster.identity, leader.term, (SELECT value FROM counters WHERE name = 'token'), cluster.restores"
    " FROM cluster, leader WHERE cluster.id = 1 AND leader.id = cluster.id"
)


class ClusterFile:
    """The ClusterSource for one SQLite database file. Each reading opens the file and closes it again."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._seen = HighestSeen()

    def close(self) -> None:
        """Close the connections to the database. Here: do nothing, because `read_cluster` keeps no connection."""

    def read_cluster(self) -> ClusterNumbers:
        """Return the identity of the cluster, its highest term and token, and the number of restores. See
        ClusterSource.
        """
        return self._seen.read(self._read)

    def accept_restores(self, restores: int) -> None:
        """Permit this process to write while the database has this number of restores. Here: do nothing, because this
        process writes nothing into the database. See ClusterSource.
        """

    def _read(self) -> ClusterNumbers:
        try:
            with closing(open_file(self.path)) as connection:
                row = connection.execute(_SELECT).fetchone()
        except sqlite3.Error as error:
            raise StoreUnavailableError(f"{self.path}: {error}") from None
        if row is None:
            raise StoreUnavailableError("the database has no row for the cluster: run `leasehold migrate`")
        identity, term, token, restores = row
        return ClusterNumbers(identity=identity, term=term, token=token, restores=restores)


def open_cluster(url: str) -> ClusterFile | Store:
    """Return an object that reads the row about the cluster in the database of this URL: a ClusterFile for an SQLite
    file, else a Store. Raises InvalidInputError for an unknown kind of URL.
    """
    if (path := find_sqlite_file(url)) is not None:
        return ClusterFile(path)
    from scheduler.store.opening import open_store  # noqa: PLC0415 - it imports SQLAlchemy

    return open_store(url)
