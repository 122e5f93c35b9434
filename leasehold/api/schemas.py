"""JSON Schemas of the messages, made from the classes that check and hold them: documents of requests from
`scheduler.model.command_schemas`, rows and answers from the client's classes.
"""

from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from leasehold.client.models import Account, Answer, Condition, Conditions, Host, Reservation, SmallestChange, Wait
from leasehold.client.models import Slot as SlotRow
from leasehold.client.rules import RulesApplied, RulesInForce, RulesPreview
from leasehold.errors import Fault
from leasehold.web.money import BudgetReport, CostReport
from leasehold.web.problems import Problem
from scheduler.model import validation as kinds
from scheduler.model.command_schemas import SCHEMAS, ReservationDocument
from scheduler.model.documents import Document
from scheduler.model.transitions import Phase
from scheduler.operations.market.offers import Offer

PREFIX: Final = "#/components/schemas/"
Schema = dict[str, Any]

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
    "Costs": CostReport,
    "Budget": BudgetReport,
    "Offer": Offer,
    "Explanation": ExplanationAnswer,
    "Conditions": Conditions,
    "Host": Host,
    "RulesInForce": RulesInForce,
    "RulesPreview": RulesPreview,
    "RulesApplied": RulesApplied,
    "Problem": Problem,
    "Fault": Fault,
}
"""Name of a schema -> class of rows and answers."""


def make_components() -> dict[str, Schema]:
    """Return all schemas by name."""
    found: dict[str, Schema] = {}
    schemas, components = msgspec.json.schema_components(list(ANSWERS.values()), ref_template=f"{PREFIX}{{name}}")
    renamed = {schema["$ref"].removeprefix(PREFIX): name for name, schema in zip(ANSWERS, schemas, strict=True)}
    for name, schema in components.items():
        found[renamed.get(name, name)] = _rename(schema, renamed)
    found["Problem"]["properties"]["errors"]["items"] = {"$ref": f"{PREFIX}Fault"}
    for document in list_documents(SCHEMAS.values()):
        found[document.__name__] = make_document_schema(document)
    _let_server_name(found[ReservationDocument.__name__])
    # Defaults become JSON: a tuple, for example, a list.
    plain: dict[str, Schema] = msgspec.json.decode(msgspec.json.encode(found))
    return plain


def _let_server_name(submission: Schema) -> None:
    """Make the id optional in the schema of a submitted reservation, as the server adds missing ones."""
    text = "without an id the server makes one: then only an Idempotency-Key makes it safe to repeat the request"
    submission["properties"]["id"] = {"anyOf": [_NAME, {"type": "null"}], "description": text}
    del submission["required"]


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
