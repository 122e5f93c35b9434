"""The page about the HTTP API: the OpenAPI document for people, rendered on the server, without a script. Each caller
that may read the document may read the page.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from markupsafe import Markup, escape
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from leasehold.api.openapi import PREFIX, make_document
from leasehold.console.page import Page, render, url
from scheduler.protocol.http_routes import API, DOCS

Schema = Mapping[str, Any]
_GROUPS: Final = {
    "reservations": "Reservations",
    "slots": "Slots",
    "accounts": "Accounts",
    "rules": "Rules",
    "costs": "Money",
    "budgets": "Money",
    "offers": "Money",
}
"""First segment of a path -> the title of its group; all other paths are in the group _REST."""
_REST: Final = "State and events"
_LIMITS: Final = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} fields",
}
"""Keyword of JSON Schema -> the text about its value."""


class Field(NamedTuple):
    """A parameter of an operation, or a field of a JSON object. `place`: where a parameter is sent (`path`, `query`,
    `header`); "" for a field. `default`: JSON; None: there is none, or it is null.
    """

    name: str
    kind: Markup
    is_required: bool
    text: Markup
    place: str = ""
    default: str | None = None


class Body(NamedTuple):
    """The body of a request or response: its type, and its fields if it is an object without a name."""

    kind: Markup
    fields: list[Field]


class Answer(NamedTuple):
    """A successful response to an operation. `types`: media type -> body."""

    status: str
    types: dict[str, Body]


class Operation(NamedTuple):
    """A method of a path, as the page shows it."""

    id: str
    method: str
    path: str
    text: Markup
    parameters: list[Field]
    body: Body | None
    answers: list[Answer]


class Named(NamedTuple):
    """A schema with a name."""

    name: str
    text: Markup
    body: Body


class Reference(NamedTuple):
    """What the page shows. `problems`: (HTTP status, meaning) of each refusal, the same for all operations."""

    groups: dict[str, list[Operation]]
    schemas: list[Named]
    problems: list[tuple[str, str]]


async def show_api(request: Request) -> Response:
    """Show all resources of the HTTP API with their parameters, bodies and responses, and all schemas."""
    root = url(request, API)
    address = f"{request.url.scheme}://{request.url.netloc}{root}"
    # The reference is made at the first request, and each page has 300 kB.
    reference = await run_in_threadpool(make_reference, root)
    return await run_in_threadpool(
        render, request, "api.html", page="api", reference=reference, root=root, address=address
    )


@lru_cache(maxsize=4)
def make_reference(root: str) -> Reference:
    """Return what the page shows of the OpenAPI document whose paths begin with `root`."""
    document = make_document(root)
    groups: dict[str, list[Operation]] = {name: [] for name in (*_GROUPS.values(), _REST)}
    problems: dict[str, str] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups[_GROUPS.get(path.split("/")[1], _REST)].append(_read_operation(method, path, operation))
            responses = operation["responses"].items()
            problems |= {status: each["description"] for status, each in responses if status >= "4"}
    schemas = sorted(document["components"]["schemas"].items())
    named = [Named(name, _show_text(schema.get("description", "")), _read_body(schema)) for name, schema in schemas]
    return Reference(groups, named, sorted(problems.items()))


def _read_operation(method: str, path: str, operation: Schema) -> Operation:
    content = operation.get("requestBody", {}).get("content", {})
    responses = sorted(operation["responses"].items())
    return Operation(
        operation["operationId"],
        method.upper(),
        path,
        _show_text(operation["summary"]),
        [
            Field(
                each["name"],
                describe_type(each["schema"]),
                each["required"],
                _show_text(each.get("description", "")),
                each["in"],
                _find_default(each["schema"]),
            )
            for each in operation.get("parameters", ())
        ],
        next((_read_body(each["schema"]) for each in content.values()), None),
        [
            Answer(status, {kind: _read_body(each["schema"]) for kind, each in response["content"].items()})
            for status, response in responses
            if status < "4"
        ],
    )


def _read_body(schema: Schema) -> Body:
    required = schema.get("required", ())
    fields = [
        Field(
            name,
            describe_type(each),
            name in required,
            _show_text(each.get("description", "")),
            default=_find_default(each),
        )
        for name, each in schema.get("properties", {}).items()
    ]
    return Body(Markup("object") if fields else describe_type(schema), fields)


def _find_default(schema: Schema) -> str | None:
    default = schema.get("default")
    return None if default is None or isinstance(default, dict) else json.dumps(default)


def describe_type(schema: Schema) -> Markup:
    """Return the values that a JSON schema accepts, as a phrase with links to the named schemas."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(PREFIX)
        return Markup('<a href="#schema-{}">{}</a>').format(name, name)
    if "enum" in schema:
        return Markup(", ").join(Markup("<code>{}</code>").format(json.dumps(each)) for each in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return Markup(" or ").join(map(describe_type, schema[key]))
    kind = schema.get("type", "any value")
    parts = [Markup(" or ").join(kind) if isinstance(kind, list) else _describe_kind(kind, schema)]
    parts += [escape(text.format(_show_number(schema[key]))) for key, text in _LIMITS.items() if key in schema]
    if "pattern" in schema:
        parts.append(Markup("like <code>{}</code>").format(schema["pattern"]))
    return Markup(", ").join(parts)


def _show_number(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else str(number)


def _describe_kind(kind: str, schema: Schema) -> Markup:
    match kind:
        case "array" if "prefixItems" in schema:
            return Markup("array of ") + Markup(" and ").join(map(describe_type, schema["prefixItems"]))
        case "array" if schema.get("items"):
            return Markup("array of ") + describe_type(schema["items"])
        case "object" if schema.get("properties"):
            properties = schema["properties"].items()
            fields = [Markup("<code>{}</code>: {}").format(name, describe_type(each)) for name, each in properties]
            return Markup("object with ") + Markup("; ").join(fields)
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return Markup("object of ") + describe_type(schema["additionalProperties"])
        case _:
            return Markup("{}").format(kind)


def _show_text(text: str) -> Markup:
    """Return a sentence of the document, with what is in backticks as code."""
    parts = " ".join(text.split()).split("`")
    return Markup().join(
        Markup("<code>{}</code>").format(part) if index % 2 else Markup("{}").format(part)
        for index, part in enumerate(parts)
    )


PAGE: Final = Page("api", "HTTP API", DOCS, 890, [Route(DOCS, show_api)], in_navigation=False)
