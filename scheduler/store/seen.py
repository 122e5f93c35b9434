"""The highest leader term and fencing token that this process has read from the database. A lower number later shows
that the database is in an older state.
"""

import threading

from scheduler.ports import ClusterRow, ForeignClusterError
from scheduler.store.session import Session


class HighestSeen:
    """What this process has read from its database so far: the highest leader term and fencing token, and the identity
    of the cluster.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._identity: str | None = None
        self._term = self._token = 0

    def read(self, session: Session) -> ClusterRow:
        """Read the row about the cluster and return it.

        Raises DatabaseWentBackError if its leader term or fencing token is lower than this process has read before, and
        ForeignClusterError if it belongs to another cluster. The row is compared with the numbers that were known
        before the statement began, because another thread may read higher ones meanwhile.
        """
        with self._guard:
            identity, term, token = self._identity, self._term, self._token
        row = session.read_cluster()
        if identity not in {None, row.identity}:
            raise ForeignClusterError(
                f"the database belongs to cluster {row.identity} now, this process to cluster {identity}: restart it"
            )
        row.refuse_older(term, token, "this process")  # promise: no-older-state
        with self._guard:
            self._identity = row.identity
            self._term, self._token = max(self._term, row.term), max(self._token, row.token)
        return row
