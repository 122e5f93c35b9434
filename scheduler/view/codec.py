"""How changed rows are encoded for the view in Redis: as JSON, together with the values that the Lua
scripts compare.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import force_setattr

from scheduler.model.reservations import Request, Reservation, is_over
from scheduler.model.slots import Slot, without_user_data
from scheduler.model.view import KINDS, ROW_TYPES, Change, Gone, Kind, Row, as_published

_ENCODER = msgspec.json.Encoder()
_PACKER = msgspec.msgpack.Encoder()
_ROWS: dict[Kind, msgspec.json.Decoder[Row]] = {kind: msgspec.json.Decoder(type_) for kind, type_ in ROW_TYPES.items()}
_LISTS: dict[str, msgspec.json.Decoder[list[Change]]] = {
    field: msgspec.json.Decoder(list[type_])  # type: ignore[valid-type]
    for field, type_ in (*ROW_TYPES.items(), ("gone", Gone))
}
MOST_REQUESTS: Final = 2000
"""Limit for the number of different requests that a RowReader keeps. If a view has more different requests, few of its
reservations have equal requests, and sharing saves little. A RowReader above the limit decodes the request of each
further reservation together with the reservation's row.
"""


class _Unread(Reservation, frozen=True, kw_only=True, gc=False):
    """A reservation whose request is not decoded yet."""

    request: msgspec.Raw  # type: ignore[assignment]


_UNREAD = msgspec.json.Decoder(list[_Unread])
_REQUEST = msgspec.json.Decoder(Request)


def pack_changes(changes: Iterable[Change]) -> bytes:
    """Return changed rows as the argument of publish.lua: one MessagePack value, which Redis reads faster than
    thousands of arguments.
    """
    return _PACKER.encode([_describe(change) for change in changes])


def has_user_data(changes: Iterable[Change]) -> bool:
    """Return whether one of these rows, which were read from the view, has user data of a pool. Processes of earlier
    versions wrote it into the view.
    """
    return any(isinstance(each, Slot) and without_user_data(each) is not each for each in changes)


def decode_row(kind: Kind, body: bytes) -> Row:
    """Return the row of this kind that a JSON text contains. Raises msgspec.DecodeError if the text does not fit this
    version of the program.
    """
    return _ROWS[kind].decode(body)


class RowReader:
    """Decodes the stored rows of a view that is read as a whole. Reservations with equal requests share one object for
    the request.

    Speed: most reservations of a large view have one of few requests. With shared objects a view takes a quarter less
    memory, and each different request is decoded only once.
    """

    def __init__(self) -> None:
        self._requests: dict[bytes, Request] = {}
        """The requests that were read, by their JSON texts."""

    def decode(self, kind: Kind, body: bytes) -> Sequence[Change]:
        """Return the rows of this kind that a JSON array contains. Raises msgspec.DecodeError if the array does not fit
        this version of the program.
        """
        known = self._requests
        if kind != "reservations" or len(known) > MOST_REQUESTS:
            return decode_deltas(kind, body)
        rows: list[Any] = _UNREAD.decode(body)
        for row in rows:
            text = bytes(row.request)
            request = known.get(text)
            if request is None:
                request = known[text] = _REQUEST.decode(text)
            force_setattr(row, "request", request)
            force_setattr(row, "__class__", Reservation)  # both classes have the same fields
        return rows


def decode_deltas(field: str, body: bytes) -> list[Change]:
    """Return the changed rows in one field of an entry in the view's stream of changes. `field`: the kind of the rows,
    or `gone` for deleted rows. `body`: the value of the field. Raises msgspec.DecodeError if the value does not fit
    this version of the program.
    """
    # A later version, which runs beside this one during an upgrade, may write rows of a further kind.
    decoder = _LISTS.get(field)
    return [] if decoder is None else decoder.decode(body)


def _describe(change: Change) -> tuple[Kind, str, int, float, str, str]:
    change = as_published(change)
    # As text, because the MessagePack of Redis 6 has no bytes.
    body = _ENCODER.encode(change).decode()
    if isinstance(change, Gone):
        return change.kind, change.id, change.version, 0.0, "gone", body
    mark = "over" if isinstance(change, Reservation) and is_over(change) else "row"
    return KINDS[type(change)], change.id, change.version, change.marked_at, mark, body
