"""The highest leader term and fencing token that this process has read from the database. If the database later has a
lower number, the database is in an older state. If the database's number of restores has changed, a backup was restored
meanwhile.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from scheduler.ports import ClusterNumbers, ClusterRow, DatabaseWentBackError, ForeignClusterError

if TYPE_CHECKING:
    from scheduler.store.session import Session

Row = TypeVar("Row", bound=ClusterNumbers)


class HighestSeen:
    """What this process has read from its database so far: the highest leader term and fencing token, the number of
    restores, and the identity of the cluster.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._identity: str | None = None
        self._term = self._token = 0
        self._restores: int | None = None
        """The number of restores that the database had when this process last checked that the database belongs to its
        cluster; None before the first check or transaction.
        """

    def accept_restores(self, restores: int) -> None:
        """Permit transactions in a database with this number of restores; `read_to_write` refuses any other number. See
        Store.
        """
        with self._guard:
            self._restores = restores

    def read_to_write(self, session: "Session") -> ClusterRow:
        """Read the row about the cluster at the begin of a transaction, and return it.

        Raises the errors of `read`. Raises DatabaseWentBackError if a backup was restored after this process has last
        checked that the database belongs to its cluster: work that began before the restore must not write into the
        restored database.
        """
        row = self.read(session.read_cluster)
        with self._guard:
            accepted = self._restores = row.restores if self._restores is None else self._restores
        if accepted != row.restores:  # promise: no-write-across-a-restore
            raise DatabaseWentBackError(
                f"a backup of cluster {row.identity} was restored during this transaction: nothing was written"
            )
        return row

    def read(self, read_cluster: Callable[[], Row]) -> Row:
        """Read the row about the cluster and return the row.

        Raises DatabaseWentBackError if the row has a lower leader term or fencing token than this process has read
        before, and ForeignClusterError if the row is that of another cluster. The row is compared with the numbers that
        were known before the statement began, because another thread may read higher numbers meanwhile.
        """
        with self._guard:
            identity, term, token = self._identity, self._term, self._token
        row = read_cluster()
        if identity not in {None, row.identity}:
            raise ForeignClusterError(
                f"the database belongs to cluster {row.identity} now, this process to cluster {identity}: "
                "restart this process"
            )
        row.refuse_older(term, token, "this process")  # promise: no-older-state
        with self._guard:
            self._identity = row.identity
            self._term, self._token = max(self._term, row.term), max(self._token, row.token)
        return row
