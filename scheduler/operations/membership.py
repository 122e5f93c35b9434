"""The check of the membership: whether database, Redis and EC2 machines belong to one cluster, and whether the database
is an older state of this cluster.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar

from scheduler.model.slots import Machine
from scheduler.ports import (
    ClusterNumbers,
    ClusterRecord,
    ClusterRow,
    ClusterSource,
    DatabaseWentBackError,
    ForeignClusterError,
    ForeignMachineError,
    ViewUnavailableError,
)

if TYPE_CHECKING:
    from scheduler.operations.ports import Ports

Row = TypeVar("Row", bound=ClusterNumbers)
CHECK_SECONDS: Final = 1.0
"""Seconds for which a process relies on its last check that database and Redis belong to one cluster."""


class MembershipCheck:
    """Checks that the database and the Redis of a process belong to one cluster, at most once in CHECK_SECONDS. A
    failed check is repeated at the next call.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._checked_at: float | None = None

    def ensure(self, ports: "Ports") -> None:
        """Check that database and Redis belong to one cluster, unless a check has just succeeded.

        Raises ForeignClusterError if they do not, DatabaseWentBackError if the database is older than Redis, and
        StoreUnavailableError if the database cannot be reached.
        """
        self.compare(ports.store, ports.record)

    def compare(self, store: ClusterSource[ClusterNumbers], record: ClusterRecord | None) -> None:
        """Check that database and Redis belong to one cluster, unless a check has just succeeded. Processes that have
        no Ports, such as the metrics process, call it in place of `ensure`. `record` None: there is no Redis to
        compare. Raises the errors of `ensure`.
        """
        if self._checked_at is not None and 0 <= self._clock() - self._checked_at < CHECK_SECONDS:
            return
        began = self._clock()
        compare_membership(store, record)
        self._checked_at = began


def check_membership(ports: "Ports") -> ClusterRow:
    """Check that database and Redis belong to one cluster. Return the database's row about the cluster. An empty Redis
    gets the identity of the cluster.

    Redis is read first, because its numbers were committed to the database before they were written to Redis. If Redis
    cannot be reached, only the database is read. Raises ForeignClusterError if Redis belongs to another cluster, and
    DatabaseWentBackError if the database is older than Redis.
    """
    return compare_membership(ports.store, ports.record)


def compare_membership(store: ClusterSource[Row], record: ClusterRecord | None) -> Row:
    """Check that `store` and `record` (the cluster record in Redis; None: there is none) belong to one cluster. Return
    the database's row about the cluster. Raises ForeignClusterError or DatabaseWentBackError.
    """
    row = _compare(store, record)
    store.accept_restores(row.restores)
    return row


def _compare(store: ClusterSource[Row], record: ClusterRecord | None) -> Row:
    if record is None:
        return store.read_cluster()
    try:
        remembered = record.read()
    except ViewUnavailableError:
        return store.read_cluster()
    row = store.read_cluster()
    if remembered.identity is not None:
        _refuse_foreign(row, remembered.identity)  # promise: one-cluster
    if remembered.is_restoring:
        raise DatabaseWentBackError(
            f"the database of cluster {row.identity} is being restored: wait for `leasehold restore`,"
            " or run it again if it was cut off"
        )
    row.refuse_older(remembered.term, remembered.token, "Redis")
    if remembered.identity is None:
        with suppress(ViewUnavailableError):  # the metrics process may not write to Redis
            _keep(record, row)
    return row


def keep_record(ports: "Ports", row: ClusterRow) -> None:
    """Write the cluster's identity and its highest term and fencing token to Redis. Raises ForeignClusterError if Redis
    has the identity of another cluster.
    """
    if ports.record is not None:
        _keep(ports.record, row)


def _keep(record: ClusterRecord, row: ClusterNumbers) -> None:
    _refuse_foreign(row, record.keep(row.identity, row.term, row.token))


def _refuse_foreign(row: ClusterNumbers, identity: str) -> None:
    if identity != row.identity:
        raise ForeignClusterError(
            f"Redis belongs to cluster {identity}, the database to cluster {row.identity}:"
            " give each cluster a Redis, or a view.prefix and a broker database, of its own"
        )


def split_foreign(machines: Iterable[Machine], identity: str) -> tuple[list[Machine], list[Machine]]:
    """Divide EC2 machines into two lists: the machines of the cluster `identity`, and the machines of other clusters.
    Machines without an identity tag are in the first list.
    """
    ours: list[Machine] = []
    foreign: list[Machine] = []
    for machine in machines:
        (ours if machine.cluster_id in {None, identity} else foreign).append(machine)
    return ours, foreign


def refuse_foreign_machines(machines: Iterable[Machine], identity: str) -> None:
    """Raise ForeignMachineError if `machines`, the EC2 machines of other clusters than `identity`, is not empty."""
    first = next(iter(machines), None)
    if first is not None:
        raise ForeignMachineError(
            f"EC2 machine {first.id} belongs to cluster {first.cluster_id}, the database to cluster {identity}:"
            " give each cluster an aws.cluster of its own"
        )
