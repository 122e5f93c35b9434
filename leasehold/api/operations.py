"""The parts of the OpenAPI document: operations with their parameters and responses, and the list of the addresses that
can only be read (GET).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from leasehold.api.money import USUAL_HOURS
from leasehold.api.queries import MOST_ITEMS, USUAL_ITEMS
from leasehold.api.schemas import PREFIX
from scheduler.model.transitions import PHASES, SLOT_STATES
from scheduler.operations.costs import WAYS
from scheduler.protocol.http_routes import (
    LONGEST_WAIT_SECONDS,
    MOST_IDS,
    MOST_MARKS,
    PROBLEM_TYPE,
    REQUEST_HEADER,
    STREAM_TYPE,
)

Schema = dict[str, Any]
JSON: Final = "application/json"
STRING: Final[Schema] = {"type": "string"}
SECONDS: Final[Schema] = {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT_SECONDS}
_PROBLEMS: Final[Mapping[str, str]] = {
    "400": "The request is not valid: `errors` lists its faults",
    "401": "The caller is not known",
    "403": "The caller may not do this",
    "404": "There is no such object",
    "409": "The request does not fit the present state",
    "413": "The body has more than 2 MB",
    "415": "The body is not JSON",
    "503": "The service is overloaded, or Redis or the database is lost: repeat after `Retry-After` seconds",
    "504": "No worker answered in time: repeat the request with the same id",
}
KEY_HEADER: Final[Schema] = {
    "name": REQUEST_HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": 200},
    "description": "the id of the request: a request with the id of an earlier one changes nothing and gets its answer",
}


def refer(name: str) -> Schema:
    """Return a reference to the schema `name` in the OpenAPI document."""
    return {"$ref": f"{PREFIX}{name}"}


def make_object(properties: Schema, required: Sequence[str] = ()) -> Schema:
    """Return the JSON schema of an object with these properties. `required`: the names of the properties that the
    object must have.
    """
    found: Schema = {"type": "object", "properties": properties}
    return {**found, "required": list(required)} if required else found


def query(name: str, schema: Schema, text: str) -> Schema:
    """Return the OpenAPI description of an optional parameter in the query string of a URL."""
    return {"name": name, "in": "query", "required": False, "schema": schema, "description": text}


def path_fields(path: str) -> list[Schema]:
    """Return the OpenAPI descriptions of the parameters that a path names in braces."""
    text = "encoded as one segment: a slash is %2F"
    return [
        {"name": name, "in": "path", "required": True, "schema": STRING, "description": text}
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def respond_with(schema: Schema, text: str, kind: str = JSON) -> Schema:
    """Return the OpenAPI description of a successful response. `kind`: its media type."""
    return {"description": text, "content": {kind: {"schema": schema}}}


def operate(name: str, summary: str, schema: Schema, status: str = "200") -> Schema:
    """Return the OpenAPI description of an operation with its responses. `schema`, `status`: the schema and the HTTP
    status of the successful response.
    """
    problem = {PROBLEM_TYPE: {"schema": refer("Problem")}}
    problems = {each: {"description": text, "content": problem} for each, text in _PROBLEMS.items()}
    return {
        "operationId": name,
        "summary": summary,
        "responses": {status: respond_with(schema, "The answer"), **problems},
    }


def list_reads() -> Iterator[tuple[str, str, Schema]]:
    """Yield (path, method, operation) for each resource that this process answers without a worker."""
    for path, name, summary, schema, fields in _READS:
        yield path, "get", {**operate(name, summary, schema), "parameters": [*path_fields(path), *fields]}
    yield "/events", "get", _describe_events()
    yield "/stream", "get", _describe_stream()
    for path, name, summary, body, schema in _POSTS:
        content = {"content": {JSON: {"schema": body}}, "required": True}
        yield path, "post", {**operate(name, summary, schema), "parameters": path_fields(path), "requestBody": content}


def _describe_events() -> Schema:
    page = _page({"type": "object"})
    found = operate("list_events", "The history, oldest first; with `Accept: text/event-stream` as a stream.", page)
    found["responses"]["200"]["content"][STREAM_TYPE] = {"schema": STRING}
    resume = {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "integer"}}
    return {**found, "parameters": [*_EVENT_FIELDS, resume]}


def _describe_stream() -> Schema:
    found = operate("stream_rows", "The changed rows of the view as a stream of server-sent events.", STRING)
    found["responses"]["200"] = respond_with(STRING, "The stream", STREAM_TYPE)
    return {**found, "parameters": [query("topic", STRING, "the topics; default: `rows`")]}


def _page(items: Schema) -> Schema:
    following = {"type": ["string", "null"], "description": "the cursor of the next page; null: this is the last one"}
    return make_object({"items": {"type": "array", "items": items}, "next": following}, ["items", "next"])


def _each_of(values: Schema) -> Schema:
    return {"type": "array", "items": values}


_PAGING: Final = [
    query("limit", {"type": "integer", "minimum": 1, "maximum": MOST_ITEMS, "default": USUAL_ITEMS}, "items of a page"),
    query("cursor", STRING, "the field `next` of the page before"),
]
_WAIT: Final = [
    query("after", STRING, "wait until the mark of the row differs from this one"),
    query("wait", SECONDS, "the most seconds to wait"),
]
_LABELS: Final = query("label.KEY", STRING, "only those with this label")
_RESERVATION_FIELDS: Final = [
    query("id", {**_each_of(STRING), "maxItems": MOST_IDS}, "only these, in place of all other parameters"),
    query("phase", _each_of({"enum": [*sorted(PHASES), "ended"]}), "only these phases"),
    *(query(name, STRING, f"only those of this {name}") for name in ("account", "pool", "system")),
    query("slot", STRING, "only those with a lease on this slot"),
    query("tag.KEY", STRING, "only those with this tag"),
    _LABELS,
    *_PAGING,
]
_SLOT_FIELDS: Final = [
    query("pool", STRING, "only those of this pool"),
    query("state", _each_of({"enum": sorted(SLOT_STATES)}), "only these states"),
    query("cordoned", {"enum": ["true", "false"]}, "only cordoned ones, or only others"),
    _LABELS,
    *_PAGING,
]
_EVENT_FIELDS: Final = [
    query("after", {"type": "integer", "minimum": 0}, "only events with a higher number"),
    *(query(name, STRING, f"only events with this {name}") for name in ("reservation", "slot", "name")),
    query("newest", {"enum": ["true", "false"]}, "the newest events; as a stream: only those from now on"),
    *_PAGING,
]
_HINT: Final = make_object({"changed": {"type": "boolean"}}, ["changed"])
_READS: Final[list[tuple[str, str, str, Schema, list[Schema]]]] = [
    (
        "/reservations",
        "list_reservations",
        "Reservations in order of submission.",
        _page(refer("Reservation")),
        _RESERVATION_FIELDS,
    ),
    ("/reservations/{reservation}", "get_reservation", "One reservation.", refer("Reservation"), _WAIT),
    ("/slots", "list_slots", "Slots by pool and name.", _page(refer("Slot")), _SLOT_FIELDS),
    ("/slots/{slot}", "get_slot", "One slot.", refer("Slot"), []),
    ("/slots/{slot}/hint", "await_hint", "Wait for a hint that a slot has changed.", _HINT, _WAIT[1:]),
    ("/accounts", "list_accounts", "The quota accounts by name.", _page(refer("Account")), []),
    ("/accounts/{account}", "get_account", "One quota account.", refer("Account"), []),
    (
        "/costs",
        "get_costs",
        "What machines cost, from the cost ledger.",
        refer("Costs"),
        [
            query("by", {"enum": list(WAYS), "default": "pool"}, "what the sums are made by"),
            query("hours", {"type": "integer", "minimum": 0, "default": USUAL_HOURS}, "how many hours count"),
        ],
    ),
    ("/budgets", "list_budgets", "Each budget with what was spent of it.", _page(refer("Budget")), []),
    (
        "/offers",
        "list_offers",
        "What launches would buy, pool by pool in the order of choice.",
        _page(refer("Offer")),
        [query("pool", STRING, "only this pool")],
    ),
    ("/report", "get_report", "The report of the last tick.", {"type": "object"}, []),
    ("/status", "get_status", "The state of the server, cluster time and the caller.", {"type": "object"}, []),
    ("/openapi.json", "get_openapi", "This document.", {"type": "object"}, []),
]
_MARKS: Final = {"type": "object", "additionalProperties": STRING, "maxProperties": MOST_MARKS}
_POSTS: Final[list[tuple[str, str, str, Schema, Schema]]] = [
    (
        "/reservations/changes",
        "await_changes",
        "Wait until one of many reservations differs from its mark.",
        make_object({"marks": _MARKS, "wait": SECONDS}, ["marks"]),
        make_object({"marks": _MARKS}, ["marks"]),
    ),
    (
        "/slots/{slot}/heartbeat",
        "send_heartbeat",
        "A heartbeat of the host of a slot.",
        make_object({"machine": STRING, "version": STRING, "run": STRING}, ["machine"]),
        make_object({"ok": {"type": "boolean"}}, ["ok"]),
    ),
]
