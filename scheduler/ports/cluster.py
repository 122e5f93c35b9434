"""The facts about the whole cluster that the database stores (identity, leader term, cluster time), and the errors that
prevent its use: it is unavailable, belongs to another cluster, or is older than what this cluster has seen.
"""

from typing import Protocol, TypeVar

import msgspec


class StoreUnavailableError(Exception):
    """Raised when the database cannot be reached, is full or refuses a statement. The message names the cause; try
    again later.
    """


class NotPermittedError(StoreUnavailableError):
    """Raised when the database works, but the database user of this process lacks a permission for a statement."""


class StandbyError(StoreUnavailableError):
    """Raised when the server of the database is a standby, or no server that was found accepts writes. A failover ends
    this state, or a URL that names the primary.
    """


class ForeignClusterError(StoreUnavailableError):
    """Raised when database, Redis and machines belong to different clusters. The message names both clusters; nothing
    was changed.
    """


class ForeignMachineError(ForeignClusterError):
    """Raised when EC2 runs machines of another cluster with the same `leasehold:cluster` tag. These machines are not
    changed.
    """


class DatabaseWentBackError(StoreUnavailableError):
    """Raised when the database has an older state than this cluster has seen before, or while a backup is being
    restored.
    """


class LeaderTerm(msgspec.Struct, frozen=True):
    """One leadership: the number of the term and the process (`holder`) that leads. Each new leader gets a higher term.
    `ticked_at`: time at which the last tick was committed; 0 = never. `tick`: number of the present tick in the term,
    from 1; 0 outside of a tick. `tick` is not stored.
    """

    term: int
    holder: str
    ticked_at: float = 0.0
    tick: int = 0


class ClusterNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers in the database's row about its cluster. `identity` shows which cluster the database belongs to;
    `term`, `token` and `restores` show whether the database went back to an older state of that cluster.
    """

    identity: str
    term: int
    token: int
    """The highest fencing token that was given to a lease."""
    restores: int
    """A count that every restore of a backup increases: when the contents of this database are replaced, and when
    `term` and `token` are set to higher numbers afterwards.
    """

    def refuse_older(self, term: int, token: int, source: str) -> None:
        """Raise DatabaseWentBackError if `source` (such as Redis) has seen a higher term or token than this row has."""
        if self.term < term or self.token < token:
            raise DatabaseWentBackError(
                f"the database of cluster {self.identity} is an older state: it has term {self.term} and token"
                f" {self.token}, {source} has seen term {term} and token {token}: run `leasehold restore --in-place`"
            )


class ClusterRow(ClusterNumbers, frozen=True, kw_only=True):
    """The database's only row about the whole cluster, read together with cluster time by one statement."""

    now: float
    """Cluster time in seconds since the epoch."""
    principals_version: int
    reference_offset: float = 0.0
    """Cluster time minus the database's own clock, in seconds. If the database's clock jumps, this offset is corrected,
    so that cluster time does not jump.
    """
    leader_term: LeaderTerm = LeaderTerm(0, "")
    rules_version: int = 0
    """Version of the scheduling rules in force; 0 before the first rules."""
    market_version: int = 0
    """Version of the catalogue of instance types and of the prices; 0 before the first catalogue or price was stored.
    """


Row_co = TypeVar("Row_co", bound=ClusterNumbers, covariant=True)


class ClusterSource(Protocol[Row_co]):
    """The methods with which a process checks that the database belongs to its cluster and has not gone back to an
    older state. Every Store has these methods; a process that only makes this check needs no Store.
    """

    def read_cluster(self) -> Row_co:
        """Return the row about the cluster. Raises the errors of `Store.read_cluster`."""

    def accept_restores(self, restores: int) -> None:
        """Record that the caller has checked the database. `restores`: how many times a backup had been restored into
        the database at that time (`ClusterRow.restores`). A Store then permits writes until this number changes.
        """
