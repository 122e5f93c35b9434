"""Documents: classes whose annotations describe the fields of an input table, and the reader that checks a table.

The reader checks the whole table and reports every fault with its path; msgspec would stop at the first one. Each class
is compiled to a list of readers when it is defined, so that reading a request takes about one microsecond per field.
"""

from collections.abc import Callable, Iterator
from inspect import get_annotations
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    NoReturn,
    Self,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
)

from scheduler.model.faults import ExpectedError, Fault, InvalidInputError, expected, format_path, show, suggest

# Readers of single values in documents: texts, numbers and flags. A reader refuses values of other types instead of
# converting them.


Read = Callable[[Any], Any]
"""A function that checks a value and returns it in its normal form. It raises ExpectedError, or _Refused for faults
inside a table or list.
"""


def read_text(value: Any) -> str:
    """Return the value if it is a text. Raises ExpectedError for another type, or for a text that UTF-8
    cannot encode.
    """
    if not isinstance(value, str):
        raise expected("a text")
    if not is_encodable(value):
        raise expected("texts of whole characters")
    return value


def is_encodable(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def read_whole_number(value: Any) -> int:
    """Return the value if it is a whole number. Raises ExpectedError for any other value, also for True and False."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise expected("a whole number")
    return value


def read_number(value: Any) -> float:
    """Return the value as a float if it is a number. Raises ExpectedError for any other value, also for
    True and False.
    """
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise expected("a number")
    return float(value)


def accept_if(is_valid: Callable[[Any], object], what: str, **context: object) -> Callable[[Any], Any]:
    """Return a check that returns the values for which `is_valid` is true, unchanged, and raises ExpectedError for
    others. `what`, `context`: as in `expected`.
    """

    def check(value: Any) -> Any:
        if not is_valid(value):
            raise expected(what, **context)
        return value

    return check


PLAIN_READERS: Final[dict[Any, Read]] = {
    str: read_text,
    int: read_whole_number,
    float: read_number,
    bool: accept_if(lambda value: isinstance(value, bool), "true or false"),
    Any: lambda value: value,
}


MOST_FAULTS: Final = 100
"""Maximum number of faults that are reported for one input."""
Location = tuple[object, ...]
_KEY: Final = "[key]"


class Before(NamedTuple):
    """A check in the annotation of a field, `Annotated[TYPE, Before(check)]`. It runs before the value is converted to
    TYPE.
    """

    check: Read


class After(NamedTuple):
    """A check in the annotation of a field, `Annotated[TYPE, After(check)]`. It runs after the value was converted to
    TYPE.
    """

    check: Read


class _Found(NamedTuple):
    """A fault of an input table before it is formatted: the path to the value, the error of the check,
    and the value.
    """

    location: Location
    error: ExpectedError
    value: object


class _Refused(Exception):  # noqa: N818 - never leaves this module
    def __init__(self, found: list[_Found]) -> None:
        self.found = found


class _Missing:
    """The type of `MISSING`, the mark for a field that has no default value."""


MISSING: Final = _Missing()


class Field(NamedTuple):
    """The definition of a document's field: its type, its default (MISSING if it is required), and the reader of its
    value.
    """

    annotation: Any
    default: Any
    read: Read

    def is_required(self) -> bool:
        """Return whether a document without this field is refused."""
        return self.default is MISSING


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Document:
    """The base class of input documents. They are immutable, refuse unknown keys, and never convert a text to a number.

    A subclass declares its fields as a dataclass does. It may override `check_fields` to check several fields together.
    """

    model_fields: ClassVar[dict[str, Field]] = {}
    """Field name -> definition. The fields of base classes come first."""

    _readers: ClassVar[dict[str, Read]] = {}
    _required: ClassVar[frozenset[str]] = frozenset()
    _defaults: ClassVar[dict[str, Any]] = {}
    _copied: ClassVar[tuple[str, ...]] = ()
    """Names of the fields whose default is a table or a list. Each document gets its own copy of such a default."""

    def __init_subclass__(cls) -> None:
        annotations: dict[str, Any] = get_annotations(cls)
        own = {
            name: Field(
                get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation,
                cls.__dict__.get(name, MISSING),
                make_reader(annotation),
            )
            for name, annotation in annotations.items()
        }
        cls.model_fields = {**cls.model_fields, **own}
        fields = cls.model_fields.items()
        cls._readers = {name: field.read for name, field in fields}
        cls._required = frozenset(name for name, field in fields if field.default is MISSING)
        cls._defaults = {name: field.default for name, field in fields if field.default is not MISSING}
        cls._copied = tuple(name for name, default in cls._defaults.items() if isinstance(default, dict | list))

    def __init__(self, **values: Any) -> None:
        try:
            self.__dict__.update(read_document(type(self), values).__dict__)
        except InvalidInputError as error:
            # Only code calls this. The message omits the values, because they may be secrets.
            faults = "; ".join(f"{each.path}: expected {each.expected}" for each in error.faults)
            raise ValueError(f"validation error of {type(self).__name__}: {faults}") from None

    @classmethod
    def model_validate(cls, value: object) -> Self:
        """Return `value`, a table from outside, as a document of this class. Raises InvalidInputError if it has a
        fault.
        """
        return read_document(cls, value)

    def check_fields(self) -> None:
        """Raise ExpectedError, as `expected` or `conflicts` makes it, if fields contradict each other; else return. The
        reader calls this method after all fields were read. Subclasses override it.
        """

    @property
    def model_fields_set(self) -> frozenset[str]:
        """The names of the fields that the input contained. All other fields have their default values."""
        return cast("frozenset[str]", self.__dict__["_given"])

    def model_copy(self, *, update: dict[str, Any]) -> Self:
        """Return a copy of the document with these fields changed. The new values are not checked."""
        values = {name: getattr(self, name) for name in self.model_fields} | update
        return _build(type(self), values, self.model_fields_set | update.keys())

    def model_dump(
        self,
        *,
        mode: Literal["python", "json"] = "python",
        include: set[str] | frozenset[str] | None = None,
        exclude: set[str] | frozenset[str] = frozenset(),
        exclude_unset: bool = False,
        exclude_defaults: bool = False,
        exclude_none: bool = False,
    ) -> dict[str, Any]:
        """Return the document as a table. In mode `json`, tuples become lists and secrets are hidden. `include`: only
        these fields; `exclude`: none of these fields. `exclude_unset`, `exclude_defaults`, `exclude_none`: omit fields
        that the input did not contain, that have their default value, or that are None; also in nested documents.
        """
        chosen: dict[str, Any] = {
            "exclude_unset": exclude_unset,
            "exclude_defaults": exclude_defaults,
            "exclude_none": exclude_none,
        }
        table = {}
        for name, field in self.model_fields.items():
            value = getattr(self, name)
            is_left_out = (
                name in exclude
                or (include is not None and name not in include)
                or (exclude_unset and name not in self.model_fields_set)
                or (exclude_defaults and value == field.default)
                or (exclude_none and value is None)
            )
            if not is_left_out:
                table[name] = _dump(value, mode, chosen)
        return table

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be set")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.model_fields)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.model_fields))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.model_fields)})"


AnyDocument = TypeVar("AnyDocument", bound=Document)


def read_document(model: type[AnyDocument], value: object, prefix: str = "", *, most: int = MOST_FAULTS) -> AnyDocument:
    """Return `value`, a table from outside, as a document of the class `model`. Raises InvalidInputError with at most
    `most` faults, one for each path, if the table has faults. `prefix`: the path of the table, with which the faults'
    paths begin.
    """
    try:
        return _read_table(model, value)
    except ExpectedError as error:
        found = [_Found((), error, value)]
    except _Refused as refused:
        found = refused.found
    faults = [fault for one in found[:most] for fault in _describe(one, prefix)]
    # A wrong key with a wrong value gives two faults of one path. The first one is reported.
    raise InvalidInputError(list({each.path: each for each in reversed(faults)}.values())[::-1])


def _describe(found: _Found, prefix: str) -> Iterator[Fault]:
    error, context = found.error, found.error.context
    location = (*found.location, context["key"]) if "key" in context else found.location
    # Characters of a key that UTF-8 cannot encode are replaced.
    path = (
        part if isinstance(part, int) else str(part).encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        for part in location
    )
    at = format_path(path, prefix)
    if error.faults:
        for one in error.faults:
            yield Fault(f"{at}.{one.path}" if at != "." else one.path, one.expected, one.got)
    else:
        got = "nothing" if found.value is MISSING else show(context.get("got", found.value))
        yield Fault(at, error.expected, got)


def _read_table(model: type[AnyDocument], value: object) -> AnyDocument:
    if isinstance(value, model):
        return value
    if type(value) is not dict and not isinstance(value, dict):
        raise expected("a table")
    readers = model._readers
    try:
        given = {name: readers[name](each) for name, each in value.items()}
    except (KeyError, ExpectedError, _Refused):
        # Read again, field by field, to sort the faults. A correct document, the usual case, skips this work.
        raise _list_found(model, value) from None
    if not model._required <= given.keys():
        raise _list_found(model, value)
    values = {**model._defaults, **given}
    for name in model._copied:
        if name not in given:
            values[name] = values[name].copy()
    document = _build(model, values, frozenset(value))
    document.check_fields()
    return document


def _list_found(model: type[Document], value: dict[Any, Any]) -> _Refused:
    """Read the table `value` as the class `model`, and return one error with all faults of the table. The faults of
    known fields come first, in the order of `model`, then the unknown keys. The table must have a fault.
    """
    fields, found = model.model_fields, list[_Found]()
    for name, field in fields.items():
        if name in value:
            try:
                field.read(value[name])
            except (ExpectedError, _Refused) as error:
                found += _locate(error, name, value[name])
        elif field.default is MISSING:
            found.append(_Found((name,), expected("a value"), MISSING))
    return _Refused(found + [_refuse_key(key, fields) for key in value if key not in fields])


def _build(model: type[AnyDocument], values: dict[str, Any], given: frozenset[str]) -> AnyDocument:
    document = model.__new__(model)
    document.__dict__.update(values, _given=given)
    return document


def _refuse_key(key: object, fields: dict[str, Field]) -> _Found:
    if not isinstance(key, str):
        return _Found((key,), expected("a text as key"), key)
    if not is_encodable(key):  # report no other fault of this table: it would show the key
        raise expected("texts of whole characters", got=key)
    return _Found((key,), expected(lambda: f"a known key{suggest(key, fields)}"), key)


def _locate(error: ExpectedError | _Refused, part: object, value: object) -> list[_Found]:
    """Return the faults of the value at `part` (a key or index), with paths that start at the table or
    list around it.
    """
    if isinstance(error, ExpectedError):
        return [_Found((part,), error, value)]
    return [_Found((part, *one.location), one.error, one.value) for one in error.found]


def make_reader(annotation: Any) -> Read:
    """Return the function that checks a value of the type `annotation` and returns it in its normal form."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _check_around(make_reader(arguments[0]), annotation.__metadata__)
    if origin in {Union, UnionType}:
        (inner,) = [make_reader(each) for each in arguments if each is not NoneType]
        return lambda value: None if value is None else inner(value)
    if origin is Literal:
        return _read_choice(arguments)
    if origin is dict:
        return _read_entries(*map(make_reader, arguments))
    if origin is list:
        return _read_items(make_reader(arguments[0]), list, (list,))
    if origin is tuple:
        return _read_items(make_reader(arguments[0]), tuple, (list, tuple))
    if isinstance(annotation, type) and issubclass(annotation, Document):
        return lambda value: _read_table(annotation, value)
    # Any other type, such as `Secret`, is called on values that do not have the type yet.
    return PLAIN_READERS.get(annotation) or (
        lambda value: value if isinstance(value, annotation) else annotation(value)
    )


def _check_around(read: Read, metadata: tuple[object, ...]) -> Read:
    for each in metadata:
        if isinstance(each, Before):
            read = _chain(each.check, read)
        elif isinstance(each, After):
            read = _chain(read, each.check)
    return read


def _chain(first: Read, second: Read) -> Read:
    # The check already returns a str or an int. Converting it again would change nothing.
    return first if second in {read_text, read_whole_number} else lambda value: second(first(value))


def _read_choice(choices: tuple[Any, ...]) -> Read:
    words = [str(each) for each in choices]

    def read(value: Any) -> Any:
        if type(value) not in {str, int} or value not in choices:
            if isinstance(value, str) and isinstance(choices[0], str):
                read_text(value)
            raise expected(lambda: f"one of {', '.join(words)}{suggest(str(value), words)}")
        return value

    return read


def _read_entries(read_key: Read, read_value: Read) -> Read:
    def read(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise expected("a table")
        table, found = {}, []
        for key, each in value.items():
            try:
                name = read_key(key)
            except ExpectedError as error:
                found.append(_Found((key,), error, key))
                name = None
            try:
                table[name] = read_value(each)
            except (ExpectedError, _Refused) as error:
                # The fault of a value under the key "[key]" has always had the path of its table.
                own = isinstance(error, ExpectedError) and key == _KEY and "key" not in error.context
                found += [_Found((), cast("ExpectedError", error), each)] if own else _locate(error, key, each)
        if found:
            raise _Refused(found)
        return table

    return read


def _read_items(read_item: Read, make: Callable[[list[Any]], Any], kinds: tuple[type, ...]) -> Read:
    def read(value: Any) -> Any:
        if not isinstance(value, kinds):
            raise expected("a list")
        items, found = [], []
        for number, each in enumerate(cast("list[Any]", value)):
            try:
                items.append(read_item(each))
            except (ExpectedError, _Refused) as error:
                found += _locate(error, number, each)
        if found:
            raise _Refused(found)
        return make(items)

    return read


def _dump(value: Any, mode: Literal["python", "json"], chosen: dict[str, Any]) -> Any:
    if isinstance(value, Document):
        return value.model_dump(mode=mode, **chosen)
    if isinstance(value, dict):
        return {key: _dump(each, mode, chosen) for key, each in value.items()}
    if isinstance(value, list | tuple):
        items = [_dump(each, mode, chosen) for each in value]
        return tuple(items) if isinstance(value, tuple) and mode == "python" else items
    return value if mode == "python" or isinstance(value, str | int | float | NoneType) else str(value)
