"""The check of the membership: whether database, Redis and EC2 machines belong to one cluster, and whether the database
is an older state of this cluster; and the jump of term and fencing token above all numbers that may have been used
(docs/adr/0015), after the database went back to an older state.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import Final, TypeVar

from scheduler.model.events import Event
from scheduler.model.slots import Machine
from scheduler.operations.ports import Ports
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

    def ensure(self, ports: Ports) -> None:
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


def check_membership(ports: Ports) -> ClusterRow:
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


def keep_record(ports: Ports, row: ClusterRow) -> None:
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


JUMP: Final = 10**10
"""The number by which a restore increases the leader's term and the fencing token. It is more than can have been used
since the highest known ones.
"""
NUMBERS_A_SECOND: Final = 10**4
"""After a restore, terms and tokens are at least this number times the seconds since the epoch. So two restores of one
backup never use the same numbers, even if no trace of the first one is left.
"""
MOST_TRUSTED: Final = 2**52
"""Terms and tokens above this number, in tags of machines and in Redis, are ignored: no cluster can have used them."""
MOST_NUMBER: Final = 2**53
"""Terms and tokens stay below this number, because JSON readers of other languages store numbers as floats."""
RESTORED: Final = "restored"
"""Name of the event that a backup was restored. It is also the reason of the phase of reservations that the restore
changed.
"""


def find_jump(known: Iterable[int], now: float) -> int:
    """Return a term or token that is higher than all `known` ones and than all that can have been used since. `now`:
    the present time. Raises ValueError if no number below MOST_NUMBER is left.
    """
    target = max(max(number for number in (0, *known) if number < MOST_TRUSTED) + JUMP, int(now) * NUMBERS_A_SECOND)
    if target >= MOST_NUMBER:
        raise ValueError(
            f"no term or token below 2**53 is left for another restore: the clock is at {now:.0f} s since the epoch"
        )
    return target


def jump(ports: Ports, terms: Iterable[int], tokens: Iterable[int]) -> None:
    """Increase term and token of the database above its own and these numbers, and record the event `restored`."""
    before = ports.store.read_cluster()
    with ports.store.transaction() as transaction:
        now = transaction.now()
        term, token = find_jump((before.term, *terms), now), find_jump((before.token, *tokens), now)
        transaction.jump(term, token)  # promise: jump-after-restore
        event = Event(
            at=now,
            name=RESTORED,
            cause="operator",
            detail={"term": term, "token": token, "from_term": before.term, "from_token": before.token},
        )
        transaction.append_events([event])


def list_terms(machines: Iterable[Machine]) -> list[int]:
    """Return the terms in the tags of these machines that a cluster can have used."""
    return [each.highest_term for each in machines if each.highest_term < MOST_TRUSTED]


def list_tokens(machines: Iterable[Machine]) -> list[int]:
    """Return the tokens in the tags of these machines that a cluster can have used."""
    return [each.highest_token for each in machines if each.highest_token < MOST_TRUSTED]


def jump_above_tags(ports: Ports, machines: Iterable[Machine], row: ClusterRow, *, has_twin: bool) -> None:
    """Let the numbers jump if the tag of a machine has a higher term or token than the database (`row`, which was read
    after the machines). Such a database is an older state that was put in place while Redis was empty.

    `has_twin`: another installation of the cluster shows signs of life, or they are the former signs of this one. Then
    only the first sweep after Redis was empty compares the tags, because later the other installation launches
    machines with numbers of its own: the two would raise each other's numbers in turn.
    """
    if has_twin and ports.record is not None and ports.record.has_compared_tags():
        return
    terms, tokens = list_terms(machines), list_tokens(machines)
    if max(terms, default=0) > row.term or max(tokens, default=0) > row.token:  # promise: tags-show-older-state
        jump(ports, terms, tokens)
        ports.warn(
            "The database is an older state than the machines' tags show; its numbers jumped.", action="cluster.jumped"
        )
        ports.store.accept_restores(ports.store.read_cluster().restores)
    if ports.record is not None:
        ports.record.keep_compared_tags()  # after the jump, so that a jump that failed is repeated
