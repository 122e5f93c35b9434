"""The resources of the HTTP API for requests to workers: the HTTP method and the path of each verb. The server, the
client over HTTP and the OpenAPI document use them.

A document is the JSON object with the fields of one request. This module imports only the standard library, because the
client uses it.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from scheduler.protocol.verbs import VERBS, Route

API: Final = "/api/v1"
"""Path of the HTTP API of this version, below the path prefix of the server."""
DOCS: Final = f"{API}/docs"
"""Path of the page that shows the HTTP API to people. The console serves it."""
TIME_HEADER: Final = "Leasehold-Time"
"""Response header with cluster time when the response was made, in seconds since the epoch."""
REQUEST_HEADER: Final = "Idempotency-Key"
"""Request header with the id of a request. A request with the id of an earlier one gets the answer of the earlier
one.
"""
LONGEST_WAIT_SECONDS: Final = 30.0
"""The most seconds for which the server waits for a change or for the answer of a worker."""
PROBLEM_TYPE: Final = "application/problem+json"
STREAM_TYPE: Final = "text/event-stream"
MOST_MARKS: Final = 1000
"""The most reservations in one request that waits for changes of reservations."""
MOST_IDS: Final = 50
"""The most ids in the URL of one request that reads several rows."""


ROUTES: Final[Mapping[str, Route]] = {name: each.route for name, each in VERBS.items()}
"""Verb -> resource for a request with one document."""
LISTS: Final[Mapping[str, Route]] = {
    name: each.list_route for name, each in VERBS.items() if each.list_route is not None
}
"""Verb -> resource for a request with a list of documents, which are under `items` in the body."""
NUMBERS: Final = frozenset({"history"})
"""Names of the fields that are sent in the query of a URL and whose values are whole numbers. A query contains only
texts, so the server converts these texts to numbers.
"""


class Call(NamedTuple):
    """An HTTP request: its method, its path relative to API, the fields of its query, and the fields of its JSON body
    (None: the request has no body).
    """

    method: str
    path: str
    query: dict[str, str]
    body: dict[str, Any] | None


def make_call(verb: str, document: Mapping[str, Any]) -> Call:
    """Return the HTTP request for a verb and its document. The id of the request is not part of the result. Raise
    KeyError for a verb that has no resource.
    """
    route = LISTS[verb] if "items" in document else ROUTES[verb]
    fields = {name: value for name, value in document.items() if name != route.field}
    path = route.path
    if route.field is not None:
        path = path.replace(f"{{{route.field}}}", quote_id(str(document.get(route.field, ""))))
    if route.has_body:
        return Call(route.method, path, {}, fields)
    return Call(route.method, path, {name: str(value) for name, value in fields.items()}, None)


def quote_id(name: str) -> str:
    """Return an id as one segment of a path: a slash in it becomes %2F, and half a character a "?", which no id has."""
    return quote(name, safe=":@", errors="replace")
