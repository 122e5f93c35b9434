"""The OpenAPI document: valid, complete, and in agreement with the checks of workers."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from leasehold.api.app import make_api
from leasehold.api.openapi import make_document
from scheduler.model.command_schemas import SCHEMAS
from scheduler.model.validation import InvalidInputError, read_document
from scheduler.protocol.http_routes import LISTS, ROUTES
from tests.api.caller import Caller
from tests.client.intake import FakeIntake, a_row
from tests.console.served import Console

PAGE = Path(__file__).parents[2] / "docs/reference/http.md"


@cache
def make_own() -> dict[str, Any]:
    """Return the document of the API, made once: that takes a second."""
    return make_document("/api/v1")


def test_the_document_is_valid_openapi() -> None:
    validate(make_own(), cls=OpenAPIV31SpecValidator)
    for schema in make_own()["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    levels = make_own()["components"]["schemas"]["Account"]["properties"]["balance"]
    assert levels | {"default": None} == {
        "type": "array",
        "items": {"type": "number"},
        "minItems": 5,
        "maxItems": 5,
        "default": None,
    }


def test_the_document_is_served(api: Caller) -> None:
    found = api.get("/openapi.json").content
    assert (found["openapi"], found["paths"].keys()) == ("3.1.0", make_own()["paths"].keys())


def test_every_route_is_in_the_document(console: Console) -> None:
    app = make_api(console.app.state.backend)
    routed = {(route.path, route.method) for route in app.routes}
    described = {(path, method.upper()) for path, each in make_own()["paths"].items() for method in each}
    assert described == routed
    named = {(route.path, route.method) for table in (ROUTES, LISTS) for route in table.values()}
    assert named <= routed


def test_every_resource_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z]+) (/[^`?]*)", page, re.MULTILINE)
    verbs = {(method, path) for method, path in rows if "{verb}" not in path}
    described = {(method.upper(), path) for path, each in make_own()["paths"].items() for method in each}
    by_verb = {
        (route.method, route.path)
        for table in (ROUTES, LISTS)
        for verb, route in table.items()
        if route.path.endswith(f"/{verb}")
    }
    assert described - by_verb - {("GET", "/openapi.json")} <= verbs
    assert verbs - {("GET", "/openapi.json")} <= described


def check(name: str, value: object) -> bool:
    """Return whether a value is valid by the schema of this name."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": make_own()["components"]}
    return bool(Draft202012Validator(schema).is_valid(value))


DOCUMENTS: list[tuple[str, dict[str, object]]] = [
    ("submit", {"id": "r1", "system": "s", "resources": {"cpus": 2}, "ttl": "15m", "labels": {"a": "b"}}),
    ("submit", {"id": "r 1", "system": "s"}),
    ("submit", {"id": "r1", "system": "s", "ttl": "soon"}),
    ("submit", {"id": "r1", "system": "s", "priority": -1}),
    ("submit", {"id": "r1", "system": "s", "unknown": 1}),
    ("submit", {"id": "r1", "system": "s", "components": [{"name": "a", "count": 0}]}),
    ("submit", {"id": "r1", "system": "s", "components": [{"name": "a", "kind": "essential"}]}),
    ("submit", {"id": "r1", "system": "s", "restart_policy": "always"}),
    ("submit", {"id": "r1", "system": "s", "tags": {"a": "x" * 257}}),
    ("submit", {"id": "r1", "system": "s", "key_hash": "0" * 64}),
    ("submit", {"id": "r1", "system": "s", "key_hash": "0" * 63}),
    ("submit", {"system": "s"}),
    ("renew", {"reservation": "r1", "token": 7}),
    ("renew", {"reservation": "r1", "token": "7"}),
    ("renew", {"reservation": "r1", "key": "short"}),
    ("account", {"account": "ci", "balance": [1, -2]}),
    ("account", {"account": "ci", "balance": [1, 2, 3, 4, 5, 6]}),
    ("confirm", {"reservation": "r1", "as_of": -5.5, "slot": "a/b"}),
    ("idle", {"slot": "a", "labels": {"n": 5}}),
]


@pytest.mark.parametrize(("verb", "document"), DOCUMENTS)
def test_a_schema_accepts_what_a_worker_accepts(verb: str, document: dict[str, object]) -> None:
    schema = SCHEMAS[verb]
    # The server adds a missing id.
    whole = {"id": "made", **document} if verb == "submit" else document
    try:
        read_document(schema, whole)
    except InvalidInputError:
        is_accepted = False
    else:
        is_accepted = True
    assert check(schema.__name__, document) is is_accepted


def test_responses_have_the_form_that_the_document_describes(api: Caller, intake: FakeIntake) -> None:
    intake.publish(a_row("r1"))
    assert check("Reservation", api.get("/reservations/r1").content)
    assert check("Problem", api.get("/reservations/missing").content)
    assert check("Problem", api.get("/reservations?phase=x").content)
    assert check("Answer", api.post("/reservations", {"id": "r2", "system": "s"}).content)
