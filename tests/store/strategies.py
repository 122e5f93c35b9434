"""Generated structs: any value that a field's type allows and that a database can hold."""

import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from hypothesis import strategies as st

# Decimal text is read back exactly by every SQLite in these bounds, wider than times and prices need.
FLOATS = st.just(0.0) | st.floats(min_value=1e-3, max_value=1e15)
INTEGERS = st.integers(min_value=0, max_value=2**53)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
_PLAIN: Mapping[Any, st.SearchStrategy[Any]] = {
    float: FLOATS,
    int: INTEGERS,
    str: TEXTS,
    bool: st.booleans(),
    types.NoneType: st.none(),
    Any: JSON,
}


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type: plain ones, containers, structs and unions of them."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return structs_of(annotation)
    parts, origin = get_args(annotation), get_origin(annotation)
    if origin is Literal:
        return st.sampled_from(parts)
    if origin in {Union, types.UnionType}:
        return st.one_of(*map(values_of, parts))
    if origin is dict:
        return st.dictionaries(values_of(parts[0]), values_of(parts[1]), max_size=3)
    if origin is list:
        return st.lists(values_of(parts[0]), max_size=3)
    if parts[-1] is Ellipsis:
        return st.lists(values_of(parts[0]), max_size=3).map(tuple)
    return st.tuples(*map(values_of, parts))


def structs_of(struct: type[msgspec.Struct], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Structs of this type; `given` replaces what is generated for a field."""
    hints = get_type_hints(struct)
    fields = {field: given[field] if field in given else values_of(hints[field]) for field in struct.__struct_fields__}
    return st.fixed_dictionaries(fields).map(lambda values: struct(**values))
