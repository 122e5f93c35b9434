"""Read botocore's descriptions of APIs in parts.

botocore keeps each description that it reads as a whole: 24 MiB for EC2, of which a process uses a few operations, and
8 MiB for the endpoints of all services.
"""

import gzip
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from botocore.loaders import JSONFileLoader

# A quotation mark within a JSON text follows a backslash, so the pattern matches members of objects only.
_DOCUMENTATION: Final = re.compile(rb',\s*"documentation"\s*:\s*"(?:[^"\\]|\\.)*"')


class DescriptionFiles(JSONFileLoader):
    """The files of botocore's descriptions, without documentation. Shapes of a service, and endpoints of a service, are
    decoded at their first use.
    """

    def _load_file(self, full_path: str, _open: object) -> Any:
        path = Path(full_path)
        if (text := _read(path)) is None:
            return None
        if path.name.startswith("service-2."):
            return _split(text, "shapes")
        if path.name.startswith("endpoints."):
            raw: dict[str, Any] = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
            partitions = msgspec.json.decode(raw.pop("partitions"), type=list[msgspec.Raw])
            return {**_decode(raw), "partitions": [_split(each, "services") for each in partitions]}
        return msgspec.json.decode(text)


class _Parts(dict[str, Any]):
    """A JSON object whose values are decoded at their first use. It is a dict, because extras are merged into it."""

    def __init__(self, raw: msgspec.Raw) -> None:
        super().__init__(msgspec.json.decode(raw, type=dict[str, msgspec.Raw]))

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if isinstance(value, msgspec.Raw):
            value = self[name] = msgspec.json.decode(value)
        return value

    def get(self, name: str, default: Any = None) -> Any:
        with suppress(KeyError):
            return self[name]
        return default

    def items(self) -> Any:
        return {name: self[name] for name in self}.items()

    def values(self) -> Any:
        return {name: self[name] for name in self}.values()


def _split(text: bytes | msgspec.Raw, name: str) -> dict[str, Any]:
    """Decode a JSON object, but its member `name` in parts."""
    raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    return {name: _Parts(raw.pop(name)), **_decode(raw)} if name in raw else _decode(raw)


def _decode(raw: dict[str, msgspec.Raw]) -> dict[str, Any]:
    return {name: msgspec.json.decode(each) for name, each in raw.items()}


# Sessions that are made one after the other, as moto makes them, read each file once.
@cache
def _read(path: Path) -> bytes | None:
    """Return the text of a file without white space and documentation: of EC2 1.1 MB in place of 4.3 MB."""
    if not path.is_file():
        return None
    text = path.read_bytes()
    if path.suffix == ".gz":
        text = gzip.decompress(text)
    return msgspec.json.format(_DOCUMENTATION.sub(b"", text), indent=-1)
