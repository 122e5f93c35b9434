"""How an immutable struct is stored as a row of a table: which columns hold its fields, and how the struct is made from
a row.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar, get_type_hints

import msgspec
from msgspec.structs import replace
from sqlalchemy import Boolean, Column, ColumnElement, Integer, Row, Table, type_coerce

from scheduler.model.accounts import Account, BalanceSample
from scheduler.model.costs import BookedMachine, Cost
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold
from scheduler.model.market import InstanceType, Price, PriceChange
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.run_times import RunTimes
from scheduler.model.runs import Execution, StoredCommand
from scheduler.model.slots import Slot
from scheduler.ports import OutboxMessage, StoredAnswer, StoredPrincipal
from scheduler.store import tables
from scheduler.store.dialect import Field, are_alike

Record = Row[*tuple[Any, ...]]
"""One row of an SQL result."""

MOST_ALIKE: Final = 10_000
"""The most decoded JSON values that are cached for one column. Equal values are decoded once and share their memory."""

LEAST_COPIED: Final = 20
"""The fewest rows for which `read_all` searches for values that all of the rows have."""

AnyStruct = TypeVar("AnyStruct", bound=msgspec.Struct)


class Shape(Generic[AnyStruct]):
    """How one kind of struct is stored as rows of a table.

    `columns`: the columns to read, in the order that `read` expects. A field is stored in the column with its name,
    except the fields in `elsewhere`, which are stored in other tables. `written`: the type of the struct that is
    written, if it differs from the type that is read.
    """

    def __init__(
        self,
        table: Table,
        struct: type[AnyStruct],
        *,
        elsewhere: Sequence[str] = (),
        written: type[msgspec.Struct] | None = None,
    ) -> None:
        self.table = table
        self._struct = struct
        self._positions = {field: at for at, field in enumerate((written or struct).__struct_fields__)}
        self._fields = tuple(field for field in struct.__struct_fields__ if field not in elsewhere)
        self.columns = tuple(_as_stored(table.c[field]) for field in self._fields)
        hints = get_type_hints(struct)
        self._readers = tuple(
            (field, reader)
            for field in self._fields
            if (reader := _find_reader(table.c[field], hints[field])) is not None
        )

    def fields(self, columns: Iterable[Column[Any]]) -> list[Field]:
        """Return each of `columns` with the path to its value in a written struct: the position of a field, then names
        of nested fields.
        """
        found = []
        for column in columns:
            first, *deeper = column.info.get("path", (column.name,))
            found.append((column, (self._positions[first], *deeper)))
        return found

    def place(self, field: str) -> int:
        """Return the position of a field's column in `columns`, and so in a row that was read."""
        return self._fields.index(field)

    def read(self, values: Sequence[Any], **elsewhere: object) -> AnyStruct:
        """Return the struct that is made of the `values` of one row. The values have the order of `columns`.

        `elsewhere`: field name -> value, for the fields whose values other tables hold.
        """
        fields: dict[str, Any] = dict(zip(self._fields, values))  # noqa: B905 - speed; further values are of the caller
        if elsewhere:
            fields |= elsewhere
        for field, reader in self._readers:
            value = fields[field]
            if value is not None:
                fields[field] = reader(value)
        return self._struct(**fields)

    def read_all(self, rows: Sequence[Record], **elsewhere: Sequence[object]) -> list[AnyStruct]:
        """Return the struct of each row, in the order of the rows. `elsewhere`: field name -> the values of this field,
        one for each row, for the fields whose values other tables hold.

        Speed: values that all rows have are converted once, and each struct is a copy of the first one with its own
        values.
        """
        if len(rows) < LEAST_COPIED:
            return [
                self.read(row, **{field: values[at] for field, values in elsewhere.items()})
                for at, row in enumerate(rows)
            ]
        # Rows may have further values, which are of the caller.
        columns: dict[str, Sequence[Any]] = {**dict(zip(self._fields, zip(*rows, strict=True))), **elsewhere}  # noqa: B905
        own = [field for field, values in columns.items() if not are_alike(values)]
        for field, reader in self._readers:
            values = columns[field] if field in own else columns[field][:1]
            columns[field] = [None if value is None else reader(value) for value in values]
        first = self._struct(**{field: values[0] for field, values in columns.items()})
        if not own:
            return [first] * len(rows)
        each = zip(*(columns[field] for field in own), strict=True)
        return [replace(first, **dict(zip(own, values))) for values in each]  # noqa: B905 - speed


def _as_stored(column: Column[Any]) -> ColumnElement[Any]:
    """Return the column for use in a query. A flag (Boolean column) is selected as the number that the database stores,
    and Shape converts it.

    Speed: if SQLAlchemy converts no column of a result, it does not look at each value of each row.
    """
    return type_coerce(column, Integer).label(column.name) if isinstance(column.type, Boolean) else column


def _find_reader(column: Column[Any], annotation: Any) -> Callable[[Any], Any] | None:
    if isinstance(column.type, Boolean):
        return bool
    if not column.info.get("json"):
        return None
    decode: Callable[[str], Any] = msgspec.json.Decoder(annotation).decode
    return lru_cache(maxsize=MOST_ALIKE)(decode) if column.info.get("alike") else decode


class StoredLease(msgspec.Struct, frozen=True):
    """A lease as a row of the table of leases: with its reservation and its position among the leases of the
    reservation.
    """

    reservation: str
    position: int
    lease: Lease


SLOTS: Final = Shape(tables.slots, Slot)
HOLDS: Final = Shape(tables.holds, Hold)
ACCOUNTS: Final = Shape(tables.accounts, Account)
RUN_TIMES: Final = Shape(tables.run_times, RunTimes)
RESERVATIONS: Final = Shape(tables.reservations, Reservation, elsewhere=("leases", "sender"))
COMMANDS: Final = Shape(tables.commands, StoredCommand)
EXECUTIONS: Final = Shape(tables.executions, Execution)
LEASES: Final = Shape(tables.leases, Lease, written=StoredLease)
BALANCES: Final = Shape(tables.balances, BalanceSample)
EVENTS: Final = Shape(tables.events, Event)
ANSWERS: Final = Shape(tables.requests, StoredAnswer)
PRINCIPALS: Final = Shape(tables.principals, StoredPrincipal)
OUTGOING: Final = Shape(tables.outgoing, OutboxMessage)
COSTS: Final = Shape(tables.costs, Cost)
BOOKED: Final = Shape(tables.booked_machines, BookedMachine)
INSTANCE_TYPES: Final = Shape(tables.instance_types, InstanceType)
PRICES: Final = Shape(tables.prices, Price)
PRICE_CHANGES: Final = Shape(tables.price_changes, PriceChange)
