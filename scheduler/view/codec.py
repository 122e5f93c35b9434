"""How changed rows are encoded for the view in Redis: as JSON, together with the values that the Lua
scripts compare.
"""

from collections.abc import Iterable

import msgspec

from scheduler.model.reservations import Reservation, is_over
from scheduler.model.view import KINDS, ROW_TYPES, Change, Gone, Kind, Row

_ENCODER = msgspec.json.Encoder()
_PACKER = msgspec.msgpack.Encoder()
_ROWS: dict[Kind, msgspec.json.Decoder[Row]] = {kind: msgspec.json.Decoder(type_) for kind, type_ in ROW_TYPES.items()}
_LISTS: dict[str, msgspec.json.Decoder[list[Change]]] = {
    field: msgspec.json.Decoder(list[type_])  # type: ignore[valid-type]
    for field, type_ in (*ROW_TYPES.items(), ("gone", Gone))
}


def pack_changes(changes: Iterable[Change]) -> bytes:
    """Return changed rows as the argument of publish.lua: one MessagePack value, which Redis reads faster than
    thousands of arguments.
    """
    return _PACKER.encode([_describe(change) for change in changes])


def decode_row(kind: Kind, body: bytes) -> Row:
    """Return the row of this kind that a JSON text contains. Raises msgspec.DecodeError if the text does not fit this
    version of the program.
    """
    return _ROWS[kind].decode(body)


def decode_deltas(field: str, body: bytes) -> list[Change]:
    """Return the changed rows in one field of an entry in the view's stream of changes. `field`: the kind of the rows,
    or `gone` for deleted rows. `body`: the value of the field. Raises msgspec.DecodeError if the value does not fit
    this version of the program.
    """
    return _LISTS[field].decode(body)


def _describe(change: Change) -> tuple[Kind, str, int, float, str, str]:
    # As text, because the MessagePack of Redis 6 has no bytes.
    body = _ENCODER.encode(change).decode()
    if isinstance(change, Gone):
        return change.kind, change.id, change.version, 0.0, "gone", body
    mark = "over" if isinstance(change, Reservation) and is_over(change) else "row"
    return KINDS[type(change)], change.id, change.version, change.marked_at, mark, body
