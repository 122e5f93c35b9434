"""Input from outside: the types that our documents are made of, and one line for each fault found in them.

Every fault says where (a path), what was expected and what came. pydantic finds the faults; this module
gives its types our words and turns its errors into `Fault`s.
"""

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, TypeGuard, TypeVar

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from leasehold.common.masking import mask_urls
from leasehold.common.visible import make_visible

MOST_NAME = 200
MOST_TEXT = 256
MOST_ENTRIES = 64
MOST_AMOUNT = 1e15
MOST_FAULTS = 100
"""A document with more faults than this is refused with the first so many."""
_MOST_PORT = 65_535
_LEVELS = 5
"""Paid levels of a quota account."""
_SHOWN = 60
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_A_DURATION = 'a duration >= 0 (seconds, or like "30s", "15m", "1h")'
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/+-]*")
_KEY = re.compile(r"[A-Za-z0-9_-]{32,200}")
_KEY_HASH = re.compile(r"[0-9a-f]{64}")


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
    return InvalidInputError([Fault(make_visible(path), expected, show(got))])


def show(value: object) -> str:
    """What came, for a line of an error: as JSON on one line, cut short, passwords in URLs left out."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        text = mask_urls(json.dumps(value, ensure_ascii=False, default=str))
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return make_visible(text[:_SHOWN]) + (f"… ({len(text)} characters)" if len(text) > _SHOWN else "")


def expected(what: str, **context: object) -> PydanticCustomError:
    """The error that a validator raises: our own words for what it wants.

    `key` adds a key to the path, `got` stands for the whole input as what came.
    """
    return PydanticCustomError("expected", "{expected}", {"expected": what, **context})


def conflicts(faults: Sequence[Fault]) -> PydanticCustomError:
    """The error that a validator of a whole table raises: all that it found, paths from that table on."""
    return PydanticCustomError("conflicts", "{expected}", {"expected": faults[0].expected, "faults": faults})


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number and finite; True and False are none."""
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: object, what: str) -> float:
    if not is_number(value) or value < 0:
        raise expected(what)
    if value > MOST_AMOUNT:
        raise expected(f"{what} and at most 1e15")
    return value


def _amount(value: object) -> float:
    return _number(value, "a number >= 0")


def _whole(value: object, least: int) -> int:
    what = f"a whole number >= {least}"
    if not is_number(value) or value < least or value != int(value):
        raise expected(what)
    if value > MOST_AMOUNT:
        raise expected(f"{what} and at most 1e15")
    return int(value)


def _count(value: object) -> int:
    return _whole(value, 0)


def _positive(value: object) -> int:
    return _whole(value, 1)


def _port(value: object) -> int:
    number = _whole(value, 1)
    if number > _MOST_PORT:
        raise expected(f"a port of at most {_MOST_PORT}")
    return number


def parse_duration(value: object) -> float:
    """Seconds: a number >= 0, or a text like "30s", "15m", "1h30m"."""
    if isinstance(value, str):
        parts = _DURATION.findall(value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            raise expected(_A_DURATION)
        value = sum(float(number) * _UNITS[unit] for number, unit in parts)
    return _number(value, _A_DURATION)


def _signed(value: object) -> float:
    if not is_number(value):
        raise expected("a number")
    if abs(value) > MOST_AMOUNT:
        raise expected("a number of at most 1e15")
    return value


def _five(value: object, check: Callable[[object], float], what: str) -> list[float]:
    """Up to five numbers, those that are missing as 0."""
    if not isinstance(value, list | tuple) or len(value) > _LEVELS or not all(is_number(each) for each in value):
        raise expected(f"a list of at most {_LEVELS} {what}")
    return [*map(check, value), *([0.0] * (_LEVELS - len(value)))]


def _levels(value: object) -> tuple[float, ...]:
    return tuple(_five(value, _amount, "numbers >= 0"))


def _signed_levels(value: object) -> tuple[float, ...]:
    return tuple(_five(value, _signed, "numbers"))


def _name(value: object) -> str:
    if not isinstance(value, str) or len(value) > MOST_NAME or not _NAME.fullmatch(value):
        raise expected(f"a name (letters, digits and ._:@/+-, at most {MOST_NAME} characters)")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        raise expected(f"a text of at most {MOST_TEXT} characters")
    return check_unicode(value)


def _key(value: object) -> str:
    if not isinstance(value, str) or not _KEY.fullmatch(value):
        raise expected("a key of 32 to 200 letters, digits, - and _", got="***")
    return value


def _key_hash(value: object) -> str:
    if not isinstance(value, str) or not _KEY_HASH.fullmatch(value):
        raise expected("the SHA-256 of a key as 64 hexadecimal digits", got="***")
    return value


def check_unicode(text: str, **context: object) -> str:
    """The text as it is; raises the error of a validator if UTF-8 or a database cannot hold it.

    `got` in the context is shown in place of the text.
    """
    if not _is_storable(text):
        raise expected("a text of whole characters, without NUL", **context)
    return text


def is_whole_text(value: object, most: int) -> TypeGuard[str]:
    """Whether it is a text of 1 to `most` characters that UTF-8 and every database can hold."""
    return isinstance(value, str) and 0 < len(value) <= most and _is_storable(value)


def _is_storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def _few(value: object) -> object:
    """First of all, so that a huge table costs one fault and not one for each entry."""
    if isinstance(value, dict) and len(value) > MOST_ENTRIES:
        raise expected(f"at most {MOST_ENTRIES} entries")
    return value


Amount = Annotated[float, BeforeValidator(_amount)]
Count = Annotated[int, BeforeValidator(_count)]
Positive = Annotated[int, BeforeValidator(_positive)]
Port = Annotated[int, BeforeValidator(_port)]
Seconds = Annotated[float, BeforeValidator(parse_duration)]
Signed = Annotated[float, BeforeValidator(_signed)]
Name = Annotated[str, BeforeValidator(_name)]
Levels = Annotated[tuple[float, float, float, float, float], BeforeValidator(_levels)]
"""A number >= 0 for each paid level, best first; shorter lists are padded with 0."""
SignedLevels = Annotated[tuple[float, float, float, float, float], BeforeValidator(_signed_levels)]
"""The same, below 0 too."""
Text = Annotated[str, BeforeValidator(_text)]
Key = Annotated[str, BeforeValidator(_key)]
"""A secret; what is wrong with one is reported without its content."""
KeyHash = Annotated[str, BeforeValidator(_key_hash)]
ResourceMap = Annotated[dict[Name, Amount], BeforeValidator(_few)]
CountMap = Annotated[dict[Name, Count], BeforeValidator(_few)]
LabelMap = Annotated[dict[Name, Text], BeforeValidator(_few)]

AnyDocument = TypeVar("AnyDocument", bound=BaseModel)


class Document(BaseModel):
    """The base of everything that comes from outside: frozen, unknown keys refused, nothing converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


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
    "invalid_key": "a text as key",
    "string_unicode": "texts of whole characters",
}


def format_path(location: Iterable[str | int], prefix: str = "") -> str:
    """`("timeline", 3, "submit")` as `timeline[3].submit`."""
    path = prefix
    for part in location:
        word = make_visible(str(part)[:_SHOWN]) + ("…" if len(str(part)) > _SHOWN else "")
        path += f"[{word}]" if isinstance(part, int) else (f".{word}" if path else word)
    return path or "."


def read_document(model: type[AnyDocument], value: object, prefix: str = "", *, most: int = MOST_FAULTS) -> AnyDocument:
    """`value` as a `model`; raises InvalidInputError with a fault for each thing that is wrong in it."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise InvalidInputError(list_faults(error, model, prefix, most=most)) from None


def list_faults(
    error: ValidationError, model: type[BaseModel], prefix: str = "", *, most: int = MOST_FAULTS
) -> list[Fault]:
    """What pydantic found in our words, the deepest path that each finding names; the first `most` findings, of those
    with one path (a wrong key with a wrong value) the first.
    """
    found = error.errors(include_url=False)[:most]
    faults = [fault_ for one in found for fault_ in _describe(one, model, prefix)]
    return list({each.path: each for each in reversed(faults)}.values())[::-1]


def _describe(found: ErrorDetails, model: type[BaseModel], prefix: str) -> list[Fault]:
    context, location = found.get("ctx", {}), _location(found)
    if "faults" in context:
        at = format_path(location, prefix)
        return [
            Fault(f"{at}.{one.path}" if at != "." else one.path, one.expected, one.got) for one in context["faults"]
        ]
    wanted, got = _compare(found, model, location)
    return [Fault(format_path(location, prefix), wanted, got)]


def _location(found: ErrorDetails) -> list[str | int]:
    """Where it is: pydantic marks a table's key by a last "[key]", our validators name one in the context."""
    location = list(found["loc"])
    if found["type"] != "extra_forbidden" and location[1:] and location[-1] == "[key]":
        location.pop()
    key = found.get("ctx", {}).get("key")
    return location if key is None else [*location, key]


def _compare(found: ErrorDetails, model: type[BaseModel], location: Sequence[str | int]) -> tuple[str, str]:
    """What was expected, and what came."""
    context, came = found.get("ctx", {}), show(found["input"])
    match found["type"]:
        case "expected":
            return context["expected"], show(context["got"]) if "got" in context else came
        case "extra_forbidden":
            near = suggest(str(location[-1]), known_keys(model, location[:-1]))
            return f"a known key{near}", show(location[-1])
        case "literal_error":
            words = context["expected"].replace("'", "").replace(" or ", ", ")
            return f"one of {words}{suggest(str(found['input']), words.split(', '))}", came
        case "missing":
            return "a value", "nothing"
        case kind:
            return _WORDS.get(kind, found["msg"]), came


def suggest(word: str, known: Iterable[str]) -> str:
    """` (did you mean "max_slots"?)` where a known word is near, else nothing."""
    near = difflib.get_close_matches(word[:MOST_NAME], list(known), n=1, cutoff=0.7)
    return f' (did you mean "{near[0]}"?)' if near else ""


def known_keys(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """The keys of the table at `location`, found by walking the annotations from the top; [] = no table."""
    found: object = model
    for part in location:
        if _is_model(found) and part in found.model_fields:
            found = found.model_fields[str(part)].annotation
        found = inner_model(found)
    return list(found.model_fields) if _is_model(found) else []


def inner_model(annotation: object) -> object:
    """The model inside `dict[str, M]`, `list[M]`, `M | None`, or the annotation itself."""
    for argument in getattr(annotation, "__args__", ()):
        inner = inner_model(argument)
        if _is_model(inner):
            return inner
    return annotation


def _is_model(annotation: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
