"""The columns of `leasehold list` and `leasehold slots`: their values, their names in CSV, and which columns a narrow
terminal hides first.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from leasehold.cli.output import show_age, show_amounts, show_texts
from leasehold.cli.tables import Cell, Column
from leasehold.texts.values import show_time

if TYPE_CHECKING:
    from leasehold.client.models import Conditions, Placement, Reservation, Slot


@dataclass(frozen=True)
class SeenReservation:
    """One line of `leasehold list`: a reservation. While the reservation is pending, `waiting` has the code and the
    reason of its wait, and `position` its place in the queue, from 1.
    """

    row: "Reservation"
    waiting: "Sequence[str] | None" = None
    position: int | None = None


@dataclass(frozen=True)
class SeenSlot:
    """One line of `leasehold slots`: a slot, the leases on it with their reservations, and the unusual conditions that
    a worker reports.
    """

    slot: "Slot"
    holders: "Sequence[tuple[Reservation, Placement]]" = ()
    conditions: "Conditions | None" = None


Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Field(Generic[Seen]):
    """One column of a list. `read` makes the column's cell from a row.

    `csv`: the name of the column in CSV; "": CSV does not have the column. `raw` makes the value for CSV; None: the
    value is the text of the cell. `where`: whether every table has the column (`always`) or only the table of `--output
    wide` (`wide`).
    """

    column: Column
    read: Callable[[Seen], Cell]
    csv: str = ""
    raw: Callable[[Seen], Any] | None = None
    where: Literal["always", "wide"] = "always"

    def read_raw(self, seen: Seen) -> Any:
        """Return the value of this column in CSV for the row `seen`."""
        if self.raw is not None:
            return self.raw(seen)
        cell = self.read(seen)
        return cell if isinstance(cell, str) else " ".join(cell)


def choose_fields(fields: Sequence[Field[Seen]], seen: Iterable[Seen], *, is_wide: bool) -> list[Field[Seen]]:
    """Return the columns that a table of the rows `seen` shows. A column for the wide table is shown only if `is_wide`.
    A column that may be hidden is not shown if all its cells would be empty.
    """
    places = {"always", "wide"} if is_wide else {"always"}
    rows = list(seen)
    return [
        each
        for each in fields
        if each.where in places and (not each.column.rank or any(each.read(row) for row in rows))
    ]


def _instant(at: float | None) -> str:
    return "" if at is None else show_time(at)


def _find_reason(seen: SeenReservation) -> str:
    """Return why a reservation waits, is being revoked, or has ended; "" if no reason is known."""
    row = seen.row
    if row.phase == "pending" and seen.waiting:
        return ": ".join(filter(None, seen.waiting))
    return (row.revoke_reason if row.phase == "revoking" else None) or row.reason or ""


def _describe_reason(seen: SeenReservation) -> str:
    due = show_age(seen.row.revoke_by) if seen.row.phase == "revoking" else ""
    return ", ".join(filter(None, (_find_reason(seen), due and f"due {due}")))


def _describe_request(seen: SeenReservation) -> str:
    """Return what a reservation requests. The amounts come first, because a narrow terminal shows the begin only."""
    return " ".join(filter(None, reversed(_divide_request(seen))))


def _divide_request(seen: SeenReservation) -> tuple[str, str]:
    request = seen.row.request
    parts = [
        " ".join(filter(None, (f"{each.count} x" if each.count > 1 else "", show_amounts(each.resources))))
        for each in request.components
    ]
    return request.system or request.pool or "", " + ".join(filter(None, parts))


def _list_slots(seen: SeenReservation) -> tuple[str, ...]:
    """Return the slots of a reservation, each once, in the order of its leases. If the reservation still waits for
    earlier leases on a slot to end, "(claimed)" follows the id.
    """
    slots = (each.slot + (" (claimed)" if each.state == "claimed" else "") for each in seen.row.leases)
    return tuple(dict.fromkeys(slots))


def _list(read: Callable[["Placement"], str | None]) -> Callable[[SeenReservation], tuple[str, ...]]:
    return lambda seen: tuple(value for each in seen.row.leases if (value := read(each)))


_R = Field[SeenReservation]
RESERVATIONS: Final[tuple[_R, ...]] = (
    _R(Column("id"), lambda seen: seen.row.id, "id"),
    _R(Column("phase", is_state=True), lambda seen: seen.row.phase, "phase"),
    _R(Column("why", "cut", 1, least=32), _describe_reason, "why", _find_reason),
    _R(
        Column("asked for", "cut", 3),
        _describe_request,
        "asked_for",
        lambda seen: " ".join(filter(None, _divide_request(seen))),
    ),
    _R(Column("account", rank=5), lambda seen: seen.row.request.account or "", "account"),
    _R(
        Column("level", rank=7),
        lambda seen: " ".join(sorted({str(each.level) for each in seen.row.leases if each.charged_at is not None})),
        "level",
    ),
    _R(Column("priority", rank=6), lambda seen: f"{seen.row.priority:g}", "priority"),
    _R(
        Column("age", rank=4),
        lambda seen: show_age(seen.row.created_at),
        "created_at",
        lambda seen: _instant(seen.row.created_at),
    ),
    _R(Column("slots", rank=2), _list_slots, "slots"),
    _R(
        Column("expires", rank=8),
        lambda seen: show_age(seen.row.expires_at),
        "expires_at",
        lambda seen: _instant(seen.row.expires_at),
        where="wide",
    ),
    _R(
        Column("leased", rank=9),
        lambda seen: show_age(seen.row.leased_at),
        "leased_at",
        lambda seen: _instant(seen.row.leased_at),
        where="wide",
    ),
    _R(
        Column("ended", rank=9),
        lambda seen: show_age(seen.row.finished_at),
        "finished_at",
        lambda seen: _instant(seen.row.finished_at),
        where="wide",
    ),
    _R(Column("token", rank=9), lambda seen: str(seen.row.token or ""), "token", where="wide"),
    _R(Column("machines", rank=9), _list(lambda each: each.instance_id), "machines", where="wide"),
    _R(Column("addresses", rank=9), _list(lambda each: each.address), "addresses", where="wide"),
    _R(Column("labels", rank=9), lambda seen: show_texts(seen.row.request.labels), "labels", where="wide"),
    _R(Column("tags", rank=9), lambda seen: show_texts(seen.row.request.tags), "tags", where="wide"),
)
"""The columns of the table and of the CSV that `leasehold list` prints."""


def describe_use(slot: "Slot", leases: "Iterable[Placement]") -> str:
    """Return the use of a slot as text: the used and the total amount of each resource, or the number of leases if the
    slot has no resources.
    """
    held = [each for each in leases if each.state != "claimed"]
    if slot.resources is None:
        return f"{len(held)} lease{'s' * (len(held) != 1)}" if held else ""
    totals = slot.resources
    names = sorted(totals, key=lambda name: (name != "cpus", name != "memory_mib", name))
    return " ".join(
        _describe_part(name, sum(each.resources.get(name, 0) for each in held), totals[name]) for name in names
    )


def _describe_part(name: str, used: float, total: float) -> str:
    if name == "memory_mib":
        return f"memory {used:g}/{total:g} MiB"
    return f"{name} {used:g}/{total:g}"


def _list_holders(seen: SeenSlot) -> tuple[str, ...]:
    """Return the ids of the reservations on a slot, each once. The state of a lease follows in brackets unless the
    state is `held`.
    """
    marks: dict[str, set[str]] = {}
    for row, lease in seen.holders:
        marks.setdefault(row.id, set()).add(lease.state)
    return tuple(name + "".join(f" ({state})" for state in sorted(states - {"held"})) for name, states in marks.items())


def _describe_marks(seen: SeenSlot) -> str:
    slot = seen.slot
    reported = seen.conditions.slots.get(slot.id) if seen.conditions else None
    refusal = f"EC2's answer: {slot.refusal}" if slot.refusal else ""
    marks = reported or ("cordoned" if slot.cordoned else "", slot.drain_reason or "", slot.error or "", refusal)
    return "; ".join(filter(None, marks))


_S = Field[SeenSlot]
SLOTS: Final[tuple[_S, ...]] = (
    _S(Column("slot"), lambda seen: seen.slot.id, "slot"),
    _S(Column("pool", rank=9), lambda seen: seen.slot.pool, "pool", where="wide"),
    _S(Column("state", is_state=True), lambda seen: seen.slot.state, "state"),
    _S(
        Column("for", rank=6),
        lambda seen: show_age(seen.slot.since).removesuffix(" ago"),
        "since",
        lambda seen: _instant(seen.slot.since),
    ),
    _S(Column("used", rank=3), lambda seen: describe_use(seen.slot, (each for _, each in seen.holders)), "used"),
    _S(Column("held by", rank=1), _list_holders, "held_by"),
    _S(Column("machine", rank=4), lambda seen: seen.slot.instance_id or "", "machine"),
    _S(Column("address", rank=5), lambda seen: seen.slot.address or "", "address"),
    _S(
        Column("type", rank=7),
        lambda seen: " ".join(filter(None, (seen.slot.instance_type, seen.slot.market))),
        "type",
    ),
    _S(Column("zone", rank=8), lambda seen: seen.slot.zone or "", "zone"),
    _S(
        Column("age", rank=9),
        lambda seen: show_age(seen.slot.launched_at).removesuffix(" ago"),
        "launched_at",
        lambda seen: _instant(seen.slot.launched_at),
    ),
    _S(Column("labels", rank=9), lambda seen: show_texts(seen.slot.labels), "labels", where="wide"),
    _S(
        Column("idle", rank=9),
        lambda seen: show_age(seen.slot.idle_since),
        "idle_since",
        lambda seen: _instant(seen.slot.idle_since),
        where="wide",
    ),
    _S(Column("notes", "cut", 2), _describe_marks, "notes"),
)
"""The columns of the table and of the CSV that `leasehold slots` prints."""
