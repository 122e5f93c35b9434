"""Every name of an event in the code is one that `leasehold events --name` accepts."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from scheduler.model.events import EVENT_NAMES

OPERATIONS = Path(__file__).parents[2] / "scheduler" / "operations"
NAME = re.compile(r"(slot|reservation|account|principal|machine|message|register|rules|key)_[a-z_]+|restored")
CALLS = frozenset({"Event", "note", "_save", "_describe"})
REASONS = frozenset({"slot_gone", "slot_offline"})


def list_names(tree: ast.AST) -> Iterator[str]:
    """Yield the texts that may be names of events: those of constants, and of arguments of calls that make events."""
    for node in ast.walk(tree):
        found: list[ast.expr | None] = []
        match node:
            case ast.Assign(targets=[ast.Name(id=name) | ast.Tuple(elts=[ast.Name(id=name), *_])]) if name.isupper():
                found = [*node.value.elts] if isinstance(node.value, ast.Tuple) else [node.value]
            case ast.AnnAssign(target=ast.Name(id=name)) if name.isupper():
                found = [node.value]
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in CALLS:
                found = [*node.args, *(each.value for each in node.keywords)]
            case ast.keyword(arg="event"):
                found = [node.value]
        yield from (each.value for each in found if isinstance(each, ast.Constant) and isinstance(each.value, str))


def test_events_of_the_operations_have_names_that_can_be_selected() -> None:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in OPERATIONS.rglob("*.py"))
    found = {name for tree in trees for name in list_names(tree) if NAME.fullmatch(name)}
    assert {"slot_adopted", "reservation_cores", "restored", "principal_added", "slot_maintenance"} <= found
    assert found - REASONS - set(EVENT_NAMES) == set()
