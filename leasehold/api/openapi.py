"""The OpenAPI 3.1 document of the HTTP API, made from the table of routes and the classes of the messages."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

import leasehold
from leasehold.api.reading import USUAL_HOURS
from leasehold.api.service import MOST_ITEMS, USUAL_ITEMS
from leasehold.client.models import (
    Account,
    Answer,
    Command,
    Condition,
    Conditions,
    Host,
    Reservation,
    SmallestChange,
    Wait,
)
from leasehold.client.models import Slot as SlotRow
from leasehold.client.rules import RulesApplied, RulesInForce, RulesPreview
from leasehold.errors import Fault
from leasehold.web.money import BudgetReport, CostReport
from leasehold.web.problems import Problem
from scheduler.model import validation as kinds
from scheduler.model.command_schemas import SCHEMAS, ReservationDocument
from scheduler.model.documents import Document
from scheduler.model.forecasts import Quality
from scheduler.model.transitions import PHASES, SLOT_STATES, Phase
from scheduler.operations.costs import WAYS
from scheduler.operations.rules.offers import Offer
from scheduler.protocol.host_proof import JOIN_PATH
from scheduler.protocol.http_routes import (
    LISTS,
    LONGEST_WAIT_SECONDS,
    MOST_IDS,
    MOST_MARKS,
    PROBLEM_TYPE,
    REQUEST_HEADER,
    ROUTES,
    STREAM_TYPE,
)
from scheduler.protocol.verbs import Route

Schema = dict[str, Any]
PREFIX: Final = "#/components/schemas/"

_NAME: Final[Schema] = {
    "type": "string",
    "pattern": "^[A-Za-z0-9][A-Za-z0-9._:@/+-]*$",
    "maxLength": kinds.MOST_NAME,
}
_AMOUNT: Final[Schema] = {"type": "number", "minimum": 0, "maximum": kinds.MOST_AMOUNT}
_SIGNED: Final[Schema] = {"type": "number", "minimum": -kinds.MOST_AMOUNT, "maximum": kinds.MOST_AMOUNT}
_TEXT: Final[Schema] = {"type": "string", "maxLength": kinds.MOST_TEXT}


def _table(values: Schema) -> Schema:
    return {
        "type": "object",
        "maxProperties": kinds.MOST_ENTRIES,
        "propertyNames": {"pattern": _NAME["pattern"], "maxLength": kinds.MOST_NAME},
        "additionalProperties": values,
    }


def _levels(values: Schema) -> Schema:
    return {"type": "array", "items": values, "maxItems": 5}


_KINDS: Final[list[tuple[Any, Schema]]] = [
    (kinds.Name, _NAME),
    (kinds.Amount, _AMOUNT),
    (kinds.Count, {"type": "integer", "minimum": 0}),
    (kinds.Positive, {"type": "integer", "minimum": 1}),
    (kinds.Seconds, {"anyOf": [_AMOUNT, {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(ms|s|m|h|d))+$"}]}),
    (kinds.Signed, _SIGNED),
    (kinds.Levels, _levels(_AMOUNT)),
    (kinds.SignedLevels, _levels(_SIGNED)),
    (kinds.Text, _TEXT),
    (kinds.Key, {"type": "string", "pattern": "^[A-Za-z0-9_-]{32,200}$"}),
    (kinds.KeyHash, {"type": "string", "pattern": "^[0-9a-f]{64}$"}),
    (kinds.Nonce, {"type": "string", "pattern": "^[A-Za-z0-9_-]{16,200}$"}),
    (kinds.ResourceMap, _table(_AMOUNT)),
    (kinds.CountMap, _table({"type": "integer", "minimum": 0})),
    (kinds.LabelMap, _table(_TEXT)),
]
"""The types that fields of documents may have, each with its JSON schema."""
_PLAIN: Final[dict[Any, Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    Any: {},
}


class ReservationRow(Reservation, frozen=True, kw_only=True):
    """A reservation with the machines of its leases. A lease whose machine is not known yet lacks the fields of the
    machine.
    """

    mark: str = ""
    """A text that differs after each change: the parameter `after` of a wait for the next change."""


class RunTimesRow(msgspec.Struct, frozen=True, kw_only=True):
    """How long the last released leases of a class of work ran, in seconds. Parts of the class that are missing in its
    id are null, as are those that the work does not have.
    """

    version: int
    marked_at: float
    id: str
    """The class, as a JSON list."""
    seconds: tuple[float, ...]
    """The last run times, the oldest first."""
    ratios: tuple[float, ...]
    """Run time / `expected_runtime` of those that had one."""
    released_at: float
    account: str | None
    principal: str | None
    job: str | None
    system: str | None
    size: str
    instances: tuple[int, int] | None
    """The least and the greatest number of instances."""
    cpus: tuple[int, int] | None
    """The least and the greatest number of cpus of all instances together."""
    number: int
    median: float | None
    p80: float | None
    p90: float | None


class Eta(msgspec.Struct, frozen=True, kw_only=True):
    """When a waiting reservation is expected to start. `low`, `median`, `high`, `late`: it starts before this time with
    a probability of 10, 50, 90 and 95 %. `unknown`: why that is not known; then the times are missing.
    """

    as_of: float
    low: float | None = None
    median: float | None = None
    high: float | None = None
    late: float | None = None
    unknown: str | None = None


class ForecastsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """How well forecasts of starts were kept, by classes of reservations, and the forecasts of some reservations. If
    there are no forecasts, only `etas` is there.
    """

    etas: dict[str, Eta]
    as_of: float | None = None
    plays: int = 0
    """How often the state was played forward for the last forecasts."""
    seconds: float = 0.0
    """How long that took."""
    newcomers: dict[str, Eta] = {}
    """Kind of reservations -> the forecast for one that is accepted now."""
    qualities: tuple[Quality, ...] = ()


class ExplanationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Why a reservation waits. `change` and the fields after it are missing if the last tick is the source."""

    ok: bool
    reservation: str
    phase: Phase
    reason: str | None = None
    as_of: float | None = None
    waiting: Wait | None = None
    position: int | None = None
    of: int = 0
    """Number of all reservations that wait."""
    eta: Eta | None = None
    headline: str | None = None
    """What does not fit, as a sentence."""
    change: SmallestChange | None = None
    rules_version: int | None = None
    """The version of the rules for which `change` was found."""
    needs: tuple[str, ...] = ()
    """What would have to be true for a lease, if there is no `change` that makes it so."""
    served: bool = False
    is_complete: bool = True
    pools: dict[str, tuple[str, ...]] = {}
    account: str | None = None
    conditions: tuple[Condition, ...] = ()
    ended: str | None = None
    """How its command ended, as a sentence."""


class TakenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The command of a lease as JSON text, and its signature."""

    ok: bool
    reservation: str
    command: str
    signature: str


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request with several `items`: one result for each item, in the order of the items. `ok`: whether
    all items were carried out.
    """

    ok: bool
    results: tuple[Answer, ...]


ANSWERS: Final = {
    "Answer": Answer,
    "Results": Results,
    "Reservation": ReservationRow,
    "Slot": SlotRow,
    "Account": Account,
    "RunTimes": RunTimesRow,
    "Costs": CostReport,
    "Budget": BudgetReport,
    "Offer": Offer,
    "Explanation": ExplanationAnswer,
    "Forecasts": ForecastsAnswer,
    "Conditions": Conditions,
    "Host": Host,
    "Command": Command,
    "Taken": TakenAnswer,
    "RulesInForce": RulesInForce,
    "RulesPreview": RulesPreview,
    "RulesApplied": RulesApplied,
    "Problem": Problem,
    "Fault": Fault,
}
"""Name of a schema -> class of rows and answers."""


def make_components() -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    schemas, components = msgspec.json.schema_components(list(ANSWERS.values()), ref_template=f"{PREFIX}{{name}}")
    renamed = {schema["$ref"].removeprefix(PREFIX): name for name, schema in zip(ANSWERS, schemas, strict=True)}
    for name, schema in components.items():
        found[renamed.get(name, name)] = _rename(schema, renamed)
    found["Problem"]["properties"]["errors"]["items"] = {"$ref": f"{PREFIX}Fault"}
    for document in list_documents(SCHEMAS.values()):
        found[document.__name__] = make_document_schema(document)
    submission = found[ReservationDocument.__name__]
    text = "without an id the server makes one: then only an Idempotency-Key makes it safe to repeat the request"
    submission["properties"]["id"] = {"anyOf": [_NAME, {"type": "null"}], "description": text}
    del submission["required"]
    # Defaults become JSON: a tuple, for example, a list.
    plain: dict[str, Schema] = msgspec.json.decode(msgspec.json.encode(found))
    return plain


def list_documents(documents: Iterable[type[Document]]) -> list[type[Document]]:
    """Return the classes `documents` and the classes of documents in their fields, each class once."""
    found: dict[str, type[Document]] = {}
    waiting = list(documents)
    while waiting:
        each = waiting.pop()
        if each.__name__ not in found:
            found[each.__name__] = each
            waiting += [part for hint in _find_hints(each).values() for part in _find_documents(hint)]
    return list(found.values())


def make_document_schema(document: type[Document]) -> Schema:
    """Return the schema of a class of documents: its fields, which of them are required, and that a document may have
    no other fields.
    """
    properties, required = {}, []
    hints = _find_hints(document)
    for name, field in document.model_fields.items():
        schema = make_schema(hints[name])
        if field.is_required():
            required.append(name)
        elif field.default is not None and isinstance(field.default, str | int | float | bool):
            schema = {**schema, "default": field.default}
        properties[name] = schema
    text = " ".join((document.__doc__ or "").split())
    made: Schema = {"type": "object", "description": text, "properties": properties, "additionalProperties": False}
    return {**made, "required": required} if required else made


def make_schema(annotation: Any) -> Schema:
    """Return the schema of the values of a field with this type."""
    for kind, schema in _KINDS:
        if annotation == kind:
            return dict(schema)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return make_schema(arguments[0])
    if origin in {Union, UnionType}:
        inner = [make_schema(each) for each in arguments if each is not NoneType]
        return {"anyOf": [*inner, {"type": "null"}]} if NoneType in arguments else {"anyOf": inner}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in {list, tuple}:
        return {"type": "array", "items": make_schema(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": make_schema(arguments[1])}
    if isinstance(annotation, type) and issubclass(annotation, Document):
        return {"$ref": f"{PREFIX}{annotation.__name__}"}
    return dict(_PLAIN[annotation])


def _find_hints(document: type[Document]) -> dict[str, Any]:
    return get_type_hints(document, include_extras=True)


def _find_documents(hint: Any) -> list[type[Document]]:
    if isinstance(hint, type):
        return [hint] if issubclass(hint, Document) else []
    return [found for each in get_args(hint) for found in _find_documents(each)]


def _rename(schema: Any, names: dict[str, str]) -> Any:
    """Return the schema with references to these names. Tuples of equal parts get `items` in place of `prefixItems`,
    which tools of earlier versions of JSON Schema read wrongly.
    """
    if isinstance(schema, dict):
        parts = schema.get("prefixItems")
        if isinstance(parts, list) and parts and all(each == parts[0] for each in parts):
            return _rename({**{key: schema[key] for key in schema if key != "prefixItems"}, "items": parts[0]}, names)
        return {
            key: f"{PREFIX}{names.get(value.removeprefix(PREFIX), value.removeprefix(PREFIX))}"
            if key == "$ref"
            else _rename(value, names)
            for key, value in schema.items()
        }
    return [_rename(each, names) for each in schema] if isinstance(schema, list) else schema


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
    page = _page({"type": "object"})
    found = operate("list_events", "The history, oldest first; with `Accept: text/event-stream` as a stream.", page)
    found["responses"]["200"]["content"][STREAM_TYPE] = {"schema": STRING}
    resume = {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "integer"}}
    yield "/events", "get", {**found, "parameters": [*_EVENT_FIELDS, resume]}
    found = operate("stream_rows", "The changed rows of the view as a stream of server-sent events.", STRING)
    found["responses"]["200"] = respond_with(STRING, "The stream", STREAM_TYPE)
    yield "/stream", "get", {**found, "parameters": [query("topic", STRING, "the topics; default: `rows`")]}
    for path, name, summary, body, schema in _POSTS:
        content = {"content": {JSON: {"schema": body}}, "required": True}
        yield path, "post", {**operate(name, summary, schema), "parameters": path_fields(path), "requestBody": content}


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
_NEW_COMMAND: Final = make_object(
    {"reservation": STRING, "component": STRING, "token": {"type": "integer"}}, ["reservation", "component", "token"]
)
_HINT: Final = make_object(
    {"changed": {"type": "boolean"}, "commands": {"type": "array", "items": _NEW_COMMAND}}, ["changed", "commands"]
)
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
        "/run-times",
        "list_run_times",
        "How long released leases ran, by classes of similar work.",
        _page(refer("RunTimes")),
        [
            query("account", STRING, "only classes of work of this account"),
            query("job", STRING, "only classes of this job"),
            *_PAGING,
        ],
    ),
    (
        "/forecasts",
        "get_forecasts",
        "How well forecasts of starts were kept, and those of some reservations.",
        refer("Forecasts"),
        [query("id", _each_of(STRING), "the reservations whose forecasts are wanted")],
    ),
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
        JOIN_PATH,
        "join",
        "The proof of a launched machine, or its id and a token. It needs no key. It gets the key of its slot.",
        make_object(
            {
                "headers": {"type": "object", "additionalProperties": STRING},
                "machine": STRING,
                "token": STRING,
            },
            [],
        ),
        make_object(dict.fromkeys(("slot", "pool", "machine", "key"), STRING), ["slot", "pool", "machine", "key"]),
    ),
    (
        "/slots/{slot}/heartbeat",
        "send_heartbeat",
        "A heartbeat of the host of a slot.",
        make_object({"machine": STRING, "version": STRING, "run": STRING}, ["machine"]),
        make_object({"ok": {"type": "boolean"}}, ["ok"]),
    ),
]


_ANSWERS: Final = {
    "explain": "Explanation",
    "conditions": "Conditions",
    "leases": "Host",
    "command": "Command",
    "take": "Taken",
    "rules": "RulesInForce",
    "preview": "RulesPreview",
    "apply": "RulesApplied",
}
"""Verb -> name of the schema of its answer. The answer of every other verb has the schema `Answer`."""


@lru_cache(maxsize=4)
def make_document(root: str) -> Schema:
    """Return the OpenAPI document. `root`: the path of the API as the caller sees it."""
    paths: dict[str, Schema] = {}
    for verb, route in ROUTES.items():
        paths.setdefault(route.path, {})[route.method.lower()] = _describe_verb(verb, route)
    for verb, route in LISTS.items():
        if route.path not in paths:
            made = operate(f"{verb}_many", f"{_summarize(verb)} One request for many.", refer("Results"))
            items = {"type": "array", "items": refer(SCHEMAS[verb].__name__), "minItems": 1}
            made["parameters"] = [query("timeout", SECONDS, "seconds to wait for the answer of a worker"), KEY_HEADER]
            made["requestBody"] = {
                "content": {JSON: {"schema": make_object({"items": items}, ["items"])}},
                "required": True,
            }
            paths[route.path] = {route.method.lower(): made}
    for path, method, operation in list_reads():
        paths.setdefault(path, {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Leasehold",
            "version": leasehold.__version__,
            "description": "Leases slots on elastic fleets. Times are cluster time in seconds since the epoch.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": root or "/"}],
        "security": [{"token": []}, {"principal": []}],
        "paths": paths,
        "components": {
            "schemas": make_components(),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "principal": {"type": "http", "scheme": "basic", "description": "name and key of a principal"},
            },
        },
    }


def _describe_verb(verb: str, route: Route) -> Schema:
    answer = _ANSWERS.get(verb, "Answer")
    made = operate(verb, _summarize(verb), refer(answer), "201" if verb == "submit" else "200")
    changes = verb in SCHEMAS or verb == "apply"
    made["parameters"] = [
        *path_fields(route.path),
        query("timeout", SECONDS, "seconds to wait for the answer of a worker"),
        *([KEY_HEADER] if changes else []),
        *_GET_FIELDS.get(verb, ()),
    ]
    if route.has_body:
        made["requestBody"] = {"content": {JSON: {"schema": _body_of(verb, route)}}, "required": verb == "submit"}
    if verb == "submit":
        made["parameters"].append(
            query(
                "row",
                {"enum": ["true", "false"]},
                "the row in the response, or null",
            )
        )
        made["responses"]["200"] = respond_with(refer("Results"), "The answers to the items")
    if verb == "query":
        rows = {"type": "array", "items": refer("Reservation")}
        made["responses"]["200"] = respond_with(
            make_object({"ok": {"type": "boolean"}, "reservations": rows}), "The rows"
        )
    return made


def _body_of(verb: str, route: Route) -> Schema:
    if verb in _BODIES:
        return _BODIES[verb]
    if verb == "query":
        return make_object({"ids": {"type": "array", "items": STRING}}, ["ids"])
    schema = refer(SCHEMAS[verb].__name__)
    if verb == "submit":
        items = {"type": "array", "items": schema, "minItems": 1}
        return {"oneOf": [schema, make_object({"items": items}, ["items"])]}
    # The field in the path may be missing in the body.
    whole = make_components()[SCHEMAS[verb].__name__]
    needed = [name for name in whole.get("required", []) if name != route.field]
    bare = {key: value for key, value in whole.items() if key != "required"}
    return {**bare, "required": needed} if needed else bare


def _summarize(verb: str) -> str:
    if verb not in SCHEMAS:
        return _SUMMARIES[verb]
    return f"The verb `{verb}`. {' '.join((SCHEMAS[verb].__doc__ or '').split())}"


_GET_FIELDS: Final = {
    "explain": [query("source", {"enum": ["worker", "view"]}, "a worker (default), or the report of the last tick")],
    "conditions": [query("pool", STRING, "only this pool")],
    "rules": [query("history", {"type": "integer", "minimum": 0, "maximum": 100}, "how many versions to list")],
    "leases": [
        {**query("machine", STRING, "the id of the machine"), "required": True},
        query("run", STRING, "the run of the agent that the answer to `register` has"),
    ],
}
"""Verb -> the fields of its document that are parameters in the query of the URL."""
_RULES: Final = {"type": "object", "description": "the scheduling rules, as in leasehold.toml"}
_BODIES: Final = {
    "preview": make_object({"rules": _RULES}, ["rules"]),
    "apply": make_object(
        {"rules": _RULES, "expected": {"type": "integer", "minimum": 0}, "source": STRING}, ["rules", "expected"]
    ),
}
_SUMMARIES: Final = {
    "query": "Reservations from the database, also those that ended long ago. Unknown ids are missing.",
    "explain": "Why a reservation waits, and the smallest change that would end its wait.",
    "conditions": "Sentences about what the states of slots and pools do not show.",
    "command": "The command of a reservation with its runs. Values of its environment are hidden.",
    "leases": "The slot of a host with the leases on it, from the database.",
    "rules": "The rules in force, with their newest versions.",
    "preview": "What would happen if other rules were applied.",
    "apply": "Put rules in force, if the version that the change was made for is still in force.",
}
