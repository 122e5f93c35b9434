"""Build the requests about many reservations, and read their answers."""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from leasehold.client.models import Answer, read_answer

ITEMS_A_REQUEST: Final = 1000


def with_id(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a reservation as JSON values, without fields that are None. If `id` is missing, a random one
    is added.
    """
    given = {key: value for key, value in fields.items() if value is not None}
    document: dict[str, Any] = msgspec.to_builtins(given)
    return document if "id" in document else {"id": f"r-{secrets.token_hex(8)}", **document}


def split_items(items: Iterable[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield these reservations as documents, each with an id, in lists of at most ITEMS_A_REQUEST: one list for each
    request.
    """
    return _split(map(with_id, items))


def split_documents(documents: Iterable[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the documents, without fields that are None, in lists of at most ITEMS_A_REQUEST: one list for each
    request.
    """
    return _split({name: value for name, value in each.items() if value is not None} for each in documents)


def _split(documents: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while chunk := [*islice(documents, ITEMS_A_REQUEST)]:
        yield chunk


def read_answers(document: Mapping[str, Any], size: int, offset: int) -> Iterator[Answer]:
    """Yield one answer for each of the `size` reservations of a request. The errors in an answer contain the index of
    the reservation among all that are submitted; `offset` is the index of the first one of this request. If the request
    was refused as a whole, the refusal is the answer for each reservation.
    """
    results = document.get("results") or [document] * size
    for index, result in enumerate(results):
        errors = [{**each, "index": offset + index} for each in result.get("errors", ())]
        yield read_answer({**result, "errors": errors} if errors else result)
