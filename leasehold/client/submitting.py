"""The documents of requests that submit reservations, and their answers."""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from leasehold.client.models import Answer, read_answer

ITEMS_A_REQUEST: Final = 1000


def with_id(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as JSON values without those that are None; a random id is added where none is given."""
    given = {key: value for key, value in fields.items() if value is not None}
    document: dict[str, Any] = msgspec.to_builtins(given)
    return document if "id" in document else {"id": f"r-{secrets.token_hex(8)}", **document}


def split_items(items: Iterable[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The documents of one request after the other, ITEMS_A_REQUEST each."""
    iterator = iter(items)
    while chunk := [with_id(item) for item in islice(iterator, ITEMS_A_REQUEST)]:
        yield chunk


def read_answers(document: Mapping[str, Any], size: int, offset: int) -> Iterator[Answer]:
    """The answers of one request by index; a request that was refused as a whole gives one for each of its items."""
    results = document.get("results") or [document] * size
    for index, result in enumerate(results):
        errors = [{**each, "index": offset + index} for each in result.get("errors", ())]
        yield read_answer({**result, "errors": errors} if errors else result)
