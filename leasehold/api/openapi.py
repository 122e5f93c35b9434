"""The OpenAPI 3.1 document of the HTTP API, made from the table of routes and the classes of the messages."""

from functools import lru_cache
from typing import Any, Final

import leasehold
from leasehold.api.operations import (
    JSON,
    KEY_HEADER,
    SECONDS,
    STRING,
    list_reads,
    make_object,
    operate,
    path_fields,
    query,
    refer,
    respond_with,
)
from leasehold.api.schemas import make_components
from scheduler.model.command_schemas import SCHEMAS
from scheduler.protocol.http_routes import LISTS, ROUTES
from scheduler.protocol.verbs import Route

Schema = dict[str, Any]
_ANSWERS: Final = {
    "explain": "Explanation",
    "conditions": "Conditions",
    "leases": "Host",
    "rules": "RulesInForce",
    "preview": "RulesPreview",
    "apply": "RulesApplied",
}
"""Verb -> name of the schema of its answer. The answer of every other verb has the schema `Answer`."""


@lru_cache(maxsize=4)
def make_document(root: str) -> Schema:
    """Return the OpenAPI document. `root`: the path of the API as the caller sees it."""
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
        "paths": _make_paths(),
        "components": {
            "schemas": make_components(),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "principal": {"type": "http", "scheme": "basic", "description": "name and key of a principal"},
            },
        },
    }


def _make_paths() -> dict[str, Schema]:
    paths: dict[str, Schema] = {}
    for verb, route in ROUTES.items():
        paths.setdefault(route.path, {})[route.method.lower()] = _describe_verb(verb, route)
    for verb, route in LISTS.items():
        if route.path not in paths:
            paths[route.path] = {route.method.lower(): _describe_list(verb)}
    for path, method, operation in list_reads():
        paths.setdefault(path, {})[method] = operation
    return paths


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


def _describe_list(verb: str) -> Schema:
    made = operate(f"{verb}_many", f"{_summarize(verb)} One request for many.", refer("Results"))
    items = {"type": "array", "items": refer(SCHEMAS[verb].__name__), "minItems": 1}
    made["parameters"] = [query("timeout", SECONDS, "seconds to wait for the answer of a worker"), KEY_HEADER]
    made["requestBody"] = {"content": {JSON: {"schema": make_object({"items": items}, ["items"])}}, "required": True}
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
    "leases": "The slot of a host with the leases on it, from the database.",
    "rules": "The rules in force, with their newest versions.",
    "preview": "What would happen if other rules were applied.",
    "apply": "Put rules in force, if the version that the change was made for is still in force.",
}
