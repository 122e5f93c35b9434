"""Find every small change that could be made to a module, and describe each by its anchor and as a patch."""

import ast
import difflib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from tests.mutations.anchor import Anchor, AnchorError, change
from tests.mutations.playing import ROOT, find_file, read

_COMPARISONS: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_ARITHMETIC: Final[Mapping[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_NO_CODE: Final = frozenset({"annotation", "returns", "decorator_list"})
"""Fields of nodes that are not run, or not by a rule."""


@dataclass(frozen=True)
class Drawn(Anchor):
    """A change that can be drawn, with its kind, its place and its patch for people."""

    kind: str
    line: int
    patch: str

    @property
    def place(self) -> str:
        return f"{find_file(self.module).relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class _Spot:
    """A node that can be changed, below the nodes that it stands in, and what replaces it (None: nothing)."""

    kind: str
    path: tuple[ast.AST, ...]
    new: ast.expr | None

    @property
    def node(self) -> ast.expr | ast.stmt:
        node = self.path[-1]
        assert isinstance(node, ast.expr | ast.stmt)
        return node


@dataclass(frozen=True)
class Possible:
    """A change before its anchor is worked out, which takes most of the time."""

    module: str
    source: str
    spot: _Spot

    def describe(self) -> Drawn:
        """Anchor the change: by the smallest piece of syntax around it that its function has only once."""
        with _changed(self.spot) as tree:
            wanted = ast.dump(tree)
        for anchor in self._list_anchors():
            if _leads_to(anchor, self.source, wanted):
                return Drawn(**vars(anchor), kind=self.spot.kind, line=self.spot.node.lineno, patch=self._make_patch())
        raise AnchorError(f"{self.module}: no anchor for line {self.spot.node.lineno}")

    def _list_anchors(self) -> Iterator[Anchor]:
        """Yield the node and what is around it; a statement alone, then with the one before or behind it."""
        path = self.spot.path
        for depth in range(len(path) - 1, 0, -1):
            node = path[depth]
            if isinstance(node, ast.expr | ast.stmt) and not isinstance(node, ast.Slice):  # `1:` alone is no code
                function = ".".join(each.name for each in path[:depth] if isinstance(each, _DEFINITIONS))
                old, new = ast.unparse(node), _unparse_changed(self.spot, depth)
                yield Anchor(self.module, function, old, new)
                for before, behind in _list_neighbours(path[depth - 1], node):
                    around = ("\n".join(filter(None, [before, code, behind])) for code in (old, new))
                    yield Anchor(self.module, function, *around)

    def _make_patch(self) -> str:
        lines = self.source.splitlines(keepends=True)
        node = self.spot.node
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        head = lines[first].encode()[: node.col_offset].decode()
        tail = lines[last].encode()[node.end_col_offset :].decode()
        new = "pass" if self.spot.new is None else ast.unparse(self.spot.new)
        changed = [*lines[:first], f"{head}{new}{tail}", *lines[last + 1 :]]
        name = str(find_file(self.module).relative_to(ROOT))
        return "".join(difflib.unified_diff(lines, changed, name, name, n=0))


def list_changes(module: str) -> Iterator[Possible]:
    source = read(module)
    yield from (Possible(module, source, spot) for spot in _list_spots((ast.parse(source),)))


def _list_neighbours(parent: ast.AST, node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the statement before a statement, and the one behind it."""
    for _, block in ast.iter_fields(parent):
        if isinstance(block, list) and node in block and isinstance(node, ast.stmt):
            place = block.index(node)
            if place > 0:
                yield ast.unparse(block[place - 1]), ""
            if place + 1 < len(block):
                yield "", ast.unparse(block[place + 1])


def _leads_to(anchor: Anchor, source: str, wanted: str) -> bool:
    try:
        return ast.dump(change(source, anchor)) == wanted
    except AnchorError:
        return False


def _unparse_changed(spot: _Spot, depth: int) -> str:
    """Return the code of the node at this depth of the path with the change."""
    if depth < len(spot.path) - 1:
        with _changed(spot):
            return ast.unparse(spot.path[depth])
    return "" if spot.new is None else ast.unparse(spot.new)


@contextmanager
def _changed(spot: _Spot) -> Iterator[ast.AST]:
    """Change the module's tree within this block, and yield it. A copy of the tree would take most of the time."""
    parent, node = spot.path[-2:]
    name, before = next((name, value) for name, value in ast.iter_fields(parent) if _holds(value, node))
    after: object = spot.new
    if isinstance(before, list):
        instead = [] if spot.new is None else [spot.new]
        after = [each for old in before for each in (instead if old is node else [old])] or [ast.Pass()]
    setattr(parent, name, after)
    try:
        yield spot.path[0]
    finally:
        setattr(parent, name, before)


def _holds(value: object, node: ast.AST) -> bool:
    return value is node or (isinstance(value, list) and any(each is node for each in value))


def _list_spots(path: tuple[ast.AST, ...]) -> Iterator[_Spot]:
    for field, value in ast.iter_fields(path[-1]):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and field not in _NO_CODE:
                inner = (*path, child)
                yield from (_Spot(kind, inner, new) for kind, new in _list_replacements(child))
                yield from _list_spots(inner)


def _list_replacements(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the kind and the result of each change of a node itself."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=comparators):
            yield "comparison", ast.Compare(left, [_COMPARISONS[type(op)]()], comparators)
        case ast.BoolOp(op=op, values=values):
            yield "boolean", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "boolean", operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            yield "arithmetic", ast.BinOp(left, _ARITHMETIC[type(op)](), right)
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", ast.Constant(value + 1)
        case ast.Expr(value=ast.Call()):
            yield "dropped call", None
