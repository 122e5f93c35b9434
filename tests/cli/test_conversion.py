"""The command line converts arguments itself as typer does, without pydantic where it can."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.cli.program import QuickParameter, convert_quickly, find_conversion
from tests.cli.conftest import Run

KINDS: dict[Any, dict[str, Any]] = {
    int: {"min": 1, "max": 50},
    float: {"min": 0, "max": 9.5},
    str: {},
    bool: {},
    Path: {},
    list[str]: {},
}
TEXTS = st.one_of(
    st.text(alphabet="0123456789.-+e_ ", max_size=8),
    st.integers(-100, 10**20).map(str),
    st.floats(allow_nan=True).map(str),
    st.sampled_from(["", ".", "/", "true", "no", "inf", "0x10", "٣", " 7", "07", "-0", "1_000", "5.", ".5"]),
)
VALUES = st.one_of(TEXTS, st.integers(-10, 60), st.floats(-10, 60), st.booleans(), st.lists(TEXTS, max_size=3))


def make_both(kind: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the conversion of typer alone, and that of the command line, to this type."""
    convert_quickly()
    core, coercion = import_module("typer.core"), import_module("typer._coercion")
    info = typer.Option(**KINDS[kind])
    descriptor = coercion.resolve_type_descriptor(annotation=kind, parameter_info=info)
    param = SimpleNamespace(multiple=kind == list[str], nargs=1)
    makers = (coercion.build_runtime_param, core.build_runtime_param)
    plain, quick = (make(descriptor) for make in makers)
    assert isinstance(quick, QuickParameter)
    return tuple(lambda value, each=each: outcome(lambda: each.coerce(value, param, None)) for each in (plain, quick))  # type: ignore[return-value]


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """Return what the call returns, with the type of each part, or the message of its error."""
    try:
        value = call()
    except (typer.BadParameter, TypeError, ValueError) as error:
        return type(error).__name__, str(error)
    return "value", (type(value), [type(each) for each in value] if isinstance(value, list) else None, repr(value))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(deadline=None)  # the first value imports pydantic
@given(value=VALUES)
def test_values_are_converted_as_typer_converts_them(kind: Any, value: Any) -> None:
    """The same value of the same type, or the same message."""
    plain, quick = make_both(kind)
    assert quick(value) == plain(value)


def test_no_value_is_none_or_no_values() -> None:
    """A parameter that was not given is not converted."""
    for kind in KINDS:
        plain, quick = make_both(kind)
        assert quick(None) == plain(None)


def test_a_path_that_cannot_be_read_is_refused_as_typer_refuses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder, a file, a missing file, and one without the right to read it."""
    file = tmp_path / "file"
    file.write_text("")
    plain, quick = make_both(Path)
    for path in (tmp_path, file, tmp_path / "missing"):
        assert quick(str(path)) == plain(str(path))
    monkeypatch.setattr("os.access", lambda *_: False)
    assert quick(str(file)) == plain(str(file))
    assert quick(str(file))[0] == "BadParameter"


def test_constraints_of_paths_are_left_to_typer() -> None:
    """A path that must exist, for example."""
    assert find_conversion(Path, typer.Option(exists=True)) is None
    assert find_conversion(Path, typer.Option(dir_okay=False)) is None
    assert find_conversion(int, typer.Option(clamp=True, min=1)) is None


def test_a_wrong_number_has_the_message_of_typer(run: Run) -> None:
    """The command line leaves wrong values to typer."""
    outcome = run("events", "--limit", "many")
    assert outcome.status == 2
    assert "valid integer" in outcome.err
