"""Reads the only row of the table `cluster`, together with values of other tables, by one statement."""

from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, func, literal, select

from scheduler.ports import ClusterRow, LeaderTerm, StoreUnavailableError
from scheduler.store import tables
from scheduler.store.dialect import Executor

CLUSTER_ID: Final = 1
_CLUSTER, _LEADER, _COUNTER = tables.cluster.c, tables.leader.c, tables.counters.c
_TOKEN: Final = select(_COUNTER.value).where(_COUNTER.name == "token").scalar_subquery()
_TERM: Final = (_LEADER.term, _LEADER.holder, _LEADER.ticked_at)
_MARKET: Final = func.coalesce(select(_COUNTER.value).where(_COUNTER.name == "market").scalar_subquery(), 0)
_RULES: Final = select(func.coalesce(func.max(tables.rules.c.version), 0)).scalar_subquery()
_WRITTEN: Final = (
    tables.reservations.c.marked_at,
    tables.slots.c.marked_at,
    tables.holds.c.marked_at,
    tables.accounts.c.marked_at,
    tables.events.c.at,
    tables.requests.c.at,
    tables.leader.c.ticked_at,
)
"""The columns with the time at which a row was written. Each column has an index, or its table has only one row, so
that the latest time is found quickly.
"""
_NEWEST: Final = select(
    *(func.coalesce(select(func.max(column)).scalar_subquery(), 0.0).label(f"newest_{number}")
      for number, column in enumerate(_WRITTEN))
)  # fmt: skip


class StoredCluster(msgspec.Struct, frozen=True):
    """What the statement of `select_cluster` reads: the row of the table `cluster`, with values of other tables."""

    reference: float
    """The time of the database's own clock, in seconds; 0 if the database has no clock."""
    identity: str
    clock_offset: float
    clock_changes: int
    boot: str | None
    base_time: float | None
    base_monotonic: float | None
    restores: int
    principals_version: int
    term: int
    holder: str
    ticked_at: float
    token: int
    rules_version: int
    market_version: int

    def at(self, now: float, offset: float) -> ClusterRow:
        """Return these values as a ClusterRow. `now`: cluster time; `offset`: the reference offset, cluster time minus
        the database's own clock.
        """
        return ClusterRow(
            now=now,
            identity=self.identity,
            term=self.term,
            token=self.token,
            restores=self.restores,
            principals_version=self.principals_version,
            reference_offset=offset,
            leader_term=LeaderTerm(self.term, self.holder, self.ticked_at),
            rules_version=self.rules_version,
            market_version=self.market_version,
        )


def select_cluster(reference: ColumnElement[float] | None = None) -> Select[Any]:
    """Return the SQL statement that reads the row of the table `cluster` as a StoredCluster.

    `reference`: the SQL expression for the database's own clock, whose value is read with the row; None: 0.0 is read.
    """
    columns = [_CLUSTER[name] for name in StoredCluster.__struct_fields__[1:9]]
    own = literal(0.0) if reference is None else reference
    found = select(own.label("reference"), *columns, *_TERM, _TOKEN, _RULES, _MARKET)
    return found.where(_CLUSTER.id == CLUSTER_ID, _LEADER.id == _CLUSTER.id)


def read_stored(connection: Executor, statement: Select[Any]) -> StoredCluster:
    """Execute the statement of `select_cluster` and return its row. Raises StoreUnavailableError if the table has no
    row.
    """
    row = connection.execute(statement).fetchone()
    if row is None:
        raise StoreUnavailableError("the database has no row for the cluster: run `leasehold migrate`")
    return StoredCluster(*row)


def find_newest(connection: Connection) -> float:
    """Return the latest time at which any row of the database was written; 0 in an empty database."""
    return float(max(connection.execute(_NEWEST).one()))
