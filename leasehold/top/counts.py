"""Counts of the rows of a view: reservations by phase, slots by pool and state, used shares of the slots, and the
numbers of reservations that were submitted, leased and ended lately. Counting a changed row takes the same time,
whatever the number of rows.
"""

from collections import Counter
from typing import Final, NamedTuple

import msgspec

ENDED: Final = frozenset({"released", "cancelled", "expired", "failed"})
"""Phases of ended reservations."""
HOLDING: Final = frozenset({"ready", "draining"})
"""States of slots that may have leases."""


class LeaseRow(msgspec.Struct, frozen=True, gc=False):
    """The fields of a lease that the counts need. The rows in Redis have more fields, which are skipped."""

    slot: str
    resources: dict[str, float] = {}
    state: str = "held"


class RunRow(msgspec.Struct, frozen=True, gc=False):
    """The field of the state of a command that the counts need."""

    state: str = "waiting"


class ReservationRow(msgspec.Struct, frozen=True, gc=False):
    """The fields of a reservation that the counts need."""

    id: str
    version: int = 0
    marked_at: float = 0.0
    phase: str = "pending"
    restarts: int = 0
    leases: tuple[LeaseRow, ...] = ()
    run: RunRow | None = None


class SlotRow(msgspec.Struct, frozen=True, gc=False):
    """The fields of a slot that the counts need."""

    id: str
    pool: str
    version: int = 0
    marked_at: float = 0.0
    state: str = "empty"
    cordoned: bool = False
    resources: dict[str, float] | None = None


class GoneRow(msgspec.Struct, frozen=True):
    """The kind (`slots` or `reservations`) and the id of a deleted row."""

    kind: str
    id: str


class PoolCounts(msgspec.Struct):
    """The slots of one pool. `states`: number of slots by state, without `empty`. Only slots in a state that permits
    leases count for `busy` and `load`. `busy`: the number of these slots that have a lease. `load`: the share of their
    capacity, from 0 to 1, that leases use, for the resource with the largest share; of slots without resources, the
    share of the slots that have a lease. None: no slot of the pool is in such a state.
    """

    states: dict[str, int] = {}
    busy: int = 0
    cordoned: int = 0
    load: float | None = None


class Happened(NamedTuple):
    """How many reservations were submitted, leased, released, and ended in another way, between two calls of
    `Counts.take_happened`.
    """

    submitted: int = 0
    leased: int = 0
    released: int = 0
    ended: int = 0


class _Place:
    """A slot (`row`; None: not known yet), the number of its leases, and the amounts of its resources that the leases
    use.
    """

    __slots__ = ("leases", "row", "used")

    def __init__(self) -> None:
        self.row: SlotRow | None = None
        self.leases = 0
        self.used: Counter[str] = Counter()


class Counts:
    """Counts the reservations and slots of a view; a changed row changes the counts."""

    def __init__(self) -> None:
        self._reservations: dict[str, ReservationRow] = {}
        self._places: dict[str, _Place] = {}
        self.phases: Counter[str] = Counter()
        """Number of reservations by phase, without ended ones."""
        self.commands: Counter[str] = Counter()
        """Number of these reservations that have a command, by its state."""
        self._happened = [0, 0, 0, 0]

    def take_reservation(self, row: ReservationRow, *, happens: bool) -> None:
        """Count a changed reservation, unless a newer copy is known. `happens`: whether the change counts for
        `take_happened`; it does not while all rows are read.
        """
        known = self._reservations.get(row.id)
        if known is not None and (row.version, row.marked_at) < (known.version, known.marked_at):
            return
        if happens:
            self._note(known, row)
        self._forget(known)
        if row.phase in ENDED:
            return
        self._reservations[row.id] = row
        self._count(row, 1)

    def take_slot(self, row: SlotRow) -> None:
        """Count a changed slot, unless a newer copy is known."""
        place = self._places.setdefault(row.id, _Place())
        known = place.row
        if known is None or (row.version, row.marked_at) >= (known.version, known.marked_at):
            place.row = row

    def drop(self, gone: GoneRow) -> None:
        """Remove a deleted reservation or slot from the counts."""
        if gone.kind == "slots" and (place := self._places.get(gone.id)) is not None:
            # Its leases end with changes of their own.
            place.row = None
        elif gone.kind == "reservations":
            self._forget(self._reservations.get(gone.id))

    def take_happened(self) -> Happened:
        """Return the number of reservations that were submitted, leased, released, and ended in another way since the
        last call.
        """
        found, self._happened = Happened(*self._happened), [0, 0, 0, 0]
        return found

    def list_pools(self) -> dict[str, PoolCounts]:
        pools: dict[str, PoolCounts] = {}
        used: dict[str, Counter[str]] = {}
        total: dict[str, Counter[str]] = {}
        for place in self._places.values():
            row = place.row
            if row is None:
                continue
            pool = pools.get(row.pool)
            if pool is None:
                pool = pools[row.pool] = PoolCounts()
                used[row.pool], total[row.pool] = Counter(), Counter()
            if row.state != "empty":
                pool.states[row.state] = pool.states.get(row.state, 0) + 1
            pool.cordoned += row.cordoned
            if row.state in HOLDING:
                pool.busy += place.leases > 0
                _add(used[row.pool], place.used if row.resources is not None else {"": min(place.leases, 1)})
                _add(total[row.pool], row.resources if row.resources is not None else {"": 1.0})
        for name, pool in pools.items():
            shares = [used[name][each] / amount for each, amount in total[name].items() if amount > 0]
            pool.load = round(max(shares), 4) if shares else None
        return dict(sorted(pools.items()))

    def _note(self, known: ReservationRow | None, row: ReservationRow) -> None:
        is_new = known is None and row.restarts == 0
        before = None if known is None else known.phase
        if is_new:
            self._happened[0] += 1
        if row.phase == before or (before is None and not is_new and row.phase in ENDED):
            return
        if row.phase == "leased" and before != "revoking":
            self._happened[1] += 1
        elif row.phase in ENDED:
            self._happened[2 if row.phase == "released" else 3] += 1

    def _forget(self, known: ReservationRow | None) -> None:
        if known is not None:
            del self._reservations[known.id]
            self._count(known, -1)

    def _count(self, row: ReservationRow, sign: int) -> None:
        self.phases[row.phase] += sign
        if row.run is not None:
            self.commands[row.run.state] += sign
        self._use(row, sign)

    def _use(self, row: ReservationRow, sign: int) -> None:
        for lease in row.leases:
            if lease.state != "claimed":
                place = self._places.get(lease.slot)
                if place is None:
                    place = self._places[lease.slot] = _Place()
                place.leases += sign
                for name, amount in lease.resources.items():
                    place.used[name] += sign * amount  # type: ignore[assignment]


def _add(sums: Counter[str], amounts: "dict[str, float] | Counter[str]") -> None:
    for name, amount in amounts.items():
        sums[name] += amount  # type: ignore[assignment]
