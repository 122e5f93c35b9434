"""What the database knows about the whole cluster (identity, leader term, cluster time), and its errors: the database
is unavailable, belongs to another cluster, or is older than what this cluster has seen.
"""

import msgspec


class StoreUnavailableError(Exception):
    """The database cannot be reached, is full or refuses; the message names the cause. Try again later."""


class NotPermittedError(StoreUnavailableError):
    """The database works, but the database user of this process lacks a permission for a statement."""


class ForeignClusterError(StoreUnavailableError):
    """The database, Redis or machines belong to different clusters; the message names both. Nothing was changed."""


class ForeignMachineError(ForeignClusterError):
    """EC2 runs machines of another cluster under the same `leasehold:cluster` tag. They are not changed."""


class DatabaseWentBackError(StoreUnavailableError):
    """The database has an older state than this cluster has seen before, or a restore of a backup is under way."""


class LeaderTerm(msgspec.Struct, frozen=True):
    """The leadership of one process. `term` only grows; `ticked_at` is when the last tick was committed (0 = never)."""

    term: int
    holder: str
    ticked_at: float = 0.0


class ClusterRow(msgspec.Struct, frozen=True, kw_only=True):
    """The one row about the whole cluster, read in one statement together with cluster time."""

    now: float
    """Cluster time in seconds since the epoch."""
    identity: str
    term: int
    token: int
    """The highest fencing token that was given to a lease."""
    restores: int
    """Number of backups that were restored into this database."""
    principals_version: int
    reference_offset: float = 0.0
    """Cluster time minus the database's own clock: the sum of this clock's jumps that were corrected."""
    leader_term: LeaderTerm = LeaderTerm(0, "")
    rules_version: int = 0
    """Version of the scheduling rules in force; 0 before the first rules."""

    def refuse_older(self, term: int, token: int, source: str) -> None:
        """Raise DatabaseWentBackError if this row has a lower term or token than `source` has seen."""
        if self.term < term or self.token < token:
            raise DatabaseWentBackError(
                f"the database of cluster {self.identity} is an older state: it has term {self.term} and token"
                f" {self.token}, {source} has seen term {term} and token {token}: run `leasehold restore --in-place`"
            )
