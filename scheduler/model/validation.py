"""Input from outside: the types that our documents are made of, and one line for each fault found in them.

Every fault says where (a path), what was expected and what came. pydantic finds the faults; this module
gives its types our words and turns its errors into `Fault`s.
"""

import difflib
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

MOST_NAME = 200
MOST_TEXT = 256
MOST_ENTRIES = 64
MOST_AMOUNT = 1e15
_SHOWN = 60
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]*")


class Fault(msgspec.Struct, frozen=True):
    """One thing wrong with an input; `str()` is the line that people see."""

    path: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.path}: expected {self.expected}, got {self.got}"


class InvalidInputError(Exception):
    """Input that was refused as a whole; `faults` says what was wrong, the first one first."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(map(str, faults)))


def fault(path: str, expected: str, got: object) -> InvalidInputError:
    """The error for a single fault, with `got` shown in short."""
    return InvalidInputError([Fault(path, expected, show(got))])


def show(value: object) -> str:
    """A value as JSON, cut short: what came, for a line of an error."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def expected(what: str, **context: Any) -> PydanticCustomError:
    """The error that a validator raises: our own words for what it wants."""
    return PydanticCustomError("expected", "{expected}", {"expected": what, **context})


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise expected(what)
    if value < 0 or value > MOST_AMOUNT:
        raise expected(what if value < 0 else f"{what} and at most 1e15")
    return value


def _amount(value: object) -> float:
    return _number(value, "a number >= 0")


def _count(value: object) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or value > MOST_AMOUNT:
        raise expected("a whole number >= 0")
    return value


def _positive(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value > MOST_AMOUNT:
        raise expected("a whole number >= 1")
    return value


def parse_duration(value: object) -> float:
    """Seconds: a number >= 0, or a text like "30s", "15m", "1h30m"."""
    if isinstance(value, str):
        parts = _DURATION.findall(value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            raise expected('a duration >= 0 (seconds, or like "30s", "15m", "1h")')
        value = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return _number(value, 'a duration >= 0 (seconds, or like "30s", "15m", "1h")')


def _signed(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise expected("a number")
    if abs(value) > MOST_AMOUNT:
        raise expected("a number of at most 1e15")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value) or len(value) > MOST_NAME:
        raise expected(f"a name (letters, digits and ._:@/+-, at most {MOST_NAME} characters)")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        raise expected(f"a text of at most {MOST_TEXT} characters")
    return value


def _few(value: dict[str, Any]) -> dict[str, Any]:
    if len(value) > MOST_ENTRIES:
        raise expected(f"at most {MOST_ENTRIES} entries")
    return value


Amount = Annotated[float, BeforeValidator(_amount)]
Count = Annotated[int, BeforeValidator(_count)]
Positive = Annotated[int, BeforeValidator(_positive)]
Seconds = Annotated[float, BeforeValidator(parse_duration)]
Signed = Annotated[float, BeforeValidator(_signed)]
Name = Annotated[str, BeforeValidator(_name)]
Text = Annotated[str, BeforeValidator(_text)]
ResourceMap = Annotated[dict[Name, Amount], AfterValidator(_few)]
LabelMap = Annotated[dict[Name, Text], AfterValidator(_few)]


AnyDocument = TypeVar("AnyDocument", bound=BaseModel)


class Document(BaseModel):
    """The base of everything that comes from outside: frozen, unknown keys refused, nothing converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


_WORDS = {
    "missing": "a value",
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "int_type": "a whole number",
    "float_type": "a number",
    "none_required": "nothing",
}


def format_path(location: Iterable[str | int], prefix: str = "") -> str:
    """`("timeline", 3, "submit")` as `timeline[3].submit`."""
    path = prefix
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else (f".{part}" if path else str(part))
    return path or "."


def read_document(model: type[AnyDocument], value: object, prefix: str = "") -> AnyDocument:
    """`value` as a `model`; raises InvalidInputError with a fault for each thing that is wrong in it."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise InvalidInputError(list_faults(error, model, prefix)) from None


def list_faults(error: ValidationError, model: type[BaseModel], prefix: str = "") -> list[Fault]:
    """pydantic's findings in our words; the deepest path that each of them names."""
    return [_describe(found, model, prefix) for found in error.errors(include_url=False)]


def _describe(found: Any, model: type[BaseModel], prefix: str) -> Fault:
    context = found.get("ctx", {})
    location = [part for part in found["loc"] if part != "[key]"]
    if "key" in context:
        location.append(context["key"])
    path = format_path(location, prefix)
    match found["type"]:
        case "expected":
            wanted, got = context["expected"], context.get("got", found["input"])
        case "extra_forbidden":
            near = suggest(str(location[-1]), _known_keys(model, location[:-1]))
            return Fault(path, f"a known key{near}", f'"{location[-1]}"')
        case "literal_error":
            wanted = "one of " + context["expected"].replace("'", "").replace(" or ", ", ")
            got = found["input"]
            wanted += suggest(str(got), wanted.removeprefix("one of ").split(", "))
        case "missing":
            return Fault(path, "a value", "nothing")
        case kind:
            wanted, got = _WORDS.get(kind, found["msg"]), found["input"]
    return Fault(path, wanted, show(got))


def suggest(word: str, known: Iterable[str]) -> str:
    """` (did you mean "max_slots"?)` where a known word is near, else nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f' (did you mean "{near[0]}"?)' if near else ""


def _known_keys(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """The keys of the table at `location`, found by walking the annotations from the top."""
    found: Any = model
    for part in location:
        if isinstance(found, type) and issubclass(found, BaseModel) and part in found.model_fields:
            found = found.model_fields[str(part)].annotation
        found = _inner_model(found)
    return list(found.model_fields) if isinstance(found, type) and issubclass(found, BaseModel) else []


def _inner_model(annotation: Any) -> Any:
    """The model inside `dict[str, M]`, `list[M]`, `M | None`, or the annotation itself."""
    for argument in getattr(annotation, "__args__", ()):
        inner = _inner_model(argument)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            return inner
    return annotation
