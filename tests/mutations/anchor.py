"""Where a change of the source applies: a module, a function and a piece of syntax.

Layout, comments and the position inside the function do not matter, because syntax trees are compared.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class AnchorError(ValueError):
    """The code has no such piece of syntax, or has it more than once; the message is one line."""


@dataclass(frozen=True)
class Anchor:
    """`old` is an expression or one or more statements of `function` (a qualified name; "": the whole module).

    `new` replaces it: an expression if both are expressions, otherwise statements; "" removes the statements.
    """

    module: str
    function: str
    old: str
    new: str


def change(source: str, anchor: Anchor) -> ast.Module:
    """Return the tree of a module's source with the change made; raise AnchorError unless `old` occurs exactly once."""
    tree = ast.parse(source)
    found = list(_find(_find_function(tree, anchor), _parse(anchor)))
    if len(found) != 1:
        raise AnchorError(f"{_name(anchor)}: expected 1 occurrence of `{_shorten(anchor.old)}`, found {len(found)}")
    found[0].replace(anchor.new)
    return ast.fix_missing_locations(tree)


def _name(anchor: Anchor) -> str:
    return f"{anchor.module}, {anchor.function or 'the whole module'}"


def _shorten(code: str) -> str:
    line = " ⏎ ".join(part.strip() for part in code.splitlines())
    return line if len(line) <= 100 else f"{line[:100]}…"


def _find_function(tree: ast.Module, anchor: Anchor) -> ast.AST:
    """Return the definition that the qualified name means, the module for ""."""
    scopes: list[ast.AST] = [tree]
    for name in filter(None, anchor.function.split(".")):
        scopes = [each for scope in scopes for each in _list_definitions(scope) if each.name == name]
    if len(scopes) != 1:
        raise AnchorError(f"{anchor.module}: expected 1 definition of `{anchor.function}`, found {len(scopes)}")
    return scopes[0]


def _list_definitions(scope: ast.AST) -> Iterator[_Definition]:
    """Yield what is defined in a scope, not what is defined inside a definition."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, _Definition):
            yield node
        else:
            yield from _list_definitions(node)


def _parse(anchor: Anchor) -> ast.expr | list[ast.stmt]:
    if is_expression(anchor.old) and is_expression(anchor.new):
        return ast.parse(anchor.old, mode="eval").body
    return ast.parse(anchor.old).body


def is_expression(code: str) -> bool:
    try:
        ast.parse(code, mode="eval")
    except SyntaxError:
        return False
    return True


@dataclass(frozen=True)
class _Expression:
    parent: ast.AST
    field: str
    index: int | None

    def replace(self, code: str) -> None:
        node = ast.parse(code, mode="eval").body
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


@dataclass(frozen=True)
class _Statements:
    block: list[ast.stmt]
    start: int
    count: int

    def replace(self, code: str) -> None:
        self.block[self.start : self.start + self.count] = ast.parse(code).body
        if not self.block:
            self.block.append(ast.Pass())


def _find(scope: ast.AST, pattern: ast.expr | list[ast.stmt]) -> Iterator[_Expression | _Statements]:
    for parent in ast.walk(scope):
        for field, value in ast.iter_fields(parent):
            if isinstance(pattern, list):
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    yield from _find_statements(value, pattern)
            elif isinstance(value, list):
                places = (index for index, each in enumerate(value) if is_same(each, pattern))
                yield from (_Expression(parent, field, index) for index in places)
            elif is_same(value, pattern):
                yield _Expression(parent, field, None)


def _find_statements(block: list[ast.stmt], pattern: Sequence[ast.stmt]) -> Iterator[_Statements]:
    for start in range(len(block) - len(pattern) + 1):
        if all(is_same(block[start + offset], each) for offset, each in enumerate(pattern)):
            yield _Statements(block, start, len(pattern))


def is_same(one: object, other: object) -> bool:
    """Return whether two pieces of syntax are the same, whatever their layout. Most pieces differ at once; to dump both
    would take most of the time.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, ast.AST):
        return all(is_same(getattr(one, name, None), getattr(other, name, None)) for name in one._fields)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one == other
