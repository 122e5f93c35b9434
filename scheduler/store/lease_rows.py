"""The stored leases of the reservations in one transaction. Only changed leases are written.

A reservation may have 10,000 leases, and most changes concern a few of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from scheduler.model.reservations import Lease, Reservation
from scheduler.store.dialect import Bulk
from scheduler.store.session import Session
from scheduler.store.shapes import StoredLease
from scheduler.store.statements import LeaseStatements

Write = Callable[[Bulk, Sequence[StoredLease]], None]


class LeaseRows:
    """The stored leases of the reservations that a transaction has loaded and locked."""

    def __init__(self, session: Session, statements: LeaseStatements) -> None:
        """Start without any known leases."""
        self._session, self._statements = session, statements
        self._stored: dict[str, tuple[tuple[Lease, ...], int]] = {}
        """For each loaded reservation, by id: its stored leases, and the position of the last stored lease (-1: it has
        none).
        """

    def note_loaded(self, rows: Iterable[Reservation], last: Mapping[str, int]) -> None:
        """Remember the leases of `rows`, reservations that were read from the database, so that `write` can find the
        leases that changed. `last`: reservation id -> position of its last stored lease.
        """
        for row in rows:
            self._stored[row.id] = row.leases, last.get(row.id, -1)

    def write(self, rows: Sequence[Reservation], write: Write, *, are_new: bool = False) -> None:
        """Write the new and changed leases of `rows` (reservations), and delete stored leases that a reservation no
        longer has. `are_new`: the reservations are new and have no stored leases.

        `write`: a function that writes lease rows by a bulk statement, and raises StaleWriteError if a row was not
        written. It is an argument and no attribute, because it is a method of the transaction that has this object: a
        cycle of references would keep all rows of the transaction in memory until a garbage collection.
        """
        changed: list[StoredLease] = []
        gone: list[StoredLease] = []
        added: list[StoredLease] = []
        whole: list[Reservation] = []
        for row in rows:
            known, last = ((), -1) if are_new else self._stored.get(row.id, (None, -1))
            if known is not None and not (known and row.leases):
                # Speed: most changes give a reservation all of its leases, or end all of them.
                if known:
                    gone += [StoredLease(row.id, 0, lease) for lease in known]
                elif row.leases:
                    added += [StoredLease(row.id, at, lease) for at, lease in enumerate(row.leases, last + 1)]
                self._stored[row.id] = row.leases, last + len(row.leases)
                continue
            kept = None if known is None else _find_kept(known, row.leases)
            if known is None or kept is None:
                whole.append(row)
                added += lay_out_leases([row])
                self._stored[row.id] = row.leases, len(row.leases) - 1
                continue
            before = {lease.component: lease for lease in known}
            changed += (
                StoredLease(row.id, 0, each) for each in row.leases[:kept] if each is not before[each.component]
            )
            staying = {lease.component for lease in row.leases}
            gone += (StoredLease(row.id, 0, lease) for lease in known if lease.component not in staying)
            added += (StoredLease(row.id, last + 1 + at, lease) for at, lease in enumerate(row.leases[kept:]))
            self._stored[row.id] = row.leases, last + len(row.leases) - kept
        if whole:
            self._session.change_for(self._statements.forget, [row.id for row in whole])
        for statement, leases in (
            (self._statements.delete, gone),
            (self._statements.update, changed),
            (self._statements.insert, added),
        ):
            if leases:
                write(statement, leases)


def lay_out_leases(rows: Iterable[Reservation]) -> list[StoredLease]:
    """Return all leases of `rows` (reservations) as StoredLeases, with positions from 0 for each reservation."""
    return [StoredLease(row.id, position, lease) for row in rows for position, lease in enumerate(row.leases)]


def _find_kept(known: Sequence[Lease], leases: Sequence[Lease]) -> int | None:
    """Return how many leases at the begin of `leases`, the present leases of a reservation, are stored already.
    `known`: its stored leases. Leases with the same component are the same one.

    Return None if all leases of the reservation have to be stored again. This is the case if the stored ones in
    `leases` are in another order than in `known`, or come after a new one. For example, with `known` = A B C, the
    result is 2 for A C D (B has ended), and None for B A or A D C.
    """
    positions = {lease.component: at for at, lease in enumerate(known)}
    last, kept = -1, 0
    for lease in leases:
        at = positions.get(lease.component)
        if at is None:
            break
        if at <= last:
            return None
        last, kept = at, kept + 1
    is_rest_new = all(lease.component not in positions for lease in leases[kept:])
    return kept if is_rest_new else None
