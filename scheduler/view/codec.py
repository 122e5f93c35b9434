"""How changes are written in Redis: JSON, with what Lua has to know of each beside it."""

from collections.abc import Iterable

import msgspec

from scheduler.model.reservations import Reservation, is_over
from scheduler.model.view import KINDS, ROW_TYPES, Change, Gone, Kind, Row

Argument = str | bytes | int | float

_DECODERS: dict[str, msgspec.json.Decoder[Row]] = {
    kind: msgspec.json.Decoder(type_) for kind, type_ in ROW_TYPES.items()
}
_GONE = msgspec.json.Decoder(Gone)
_ENCODER = msgspec.json.Encoder()


def encode_changes(changes: Iterable[Change]) -> list[Argument]:
    """The six arguments that publish.lua takes for each change, one after the other."""
    arguments: list[Argument] = []
    for change in changes:
        body = _ENCODER.encode(change)
        if isinstance(change, Gone):
            arguments += (change.kind, change.id, change.version, 0, "gone", body)
        else:
            mark = "over" if isinstance(change, Reservation) and is_over(change) else "row"
            arguments += (KINDS[type(change)], change.id, change.version, change.marked_at, mark, body)
    return arguments


def decode_row(kind: Kind, body: bytes) -> Row:
    """A row from its JSON. Raises msgspec.DecodeError for what another version of ours wrote differently."""
    return _DECODERS[kind].decode(body)


def decode_delta(field: str, body: bytes) -> Change:
    """A change from a delta's field (a kind, or `gone`) and JSON. Raises as `decode_row` does."""
    return _GONE.decode(body) if field == "gone" else _DECODERS[field].decode(body)
