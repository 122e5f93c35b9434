"""`python -m tests.language [PATH...]`: print constructions that the house rules of language refuse.

The rules stand in CONTRIBUTING.md, "Language". In Python files the check reads comments, docstrings, messages and the
names that the file defines; in Markdown it reads everything but code. Without a path it reads all files of the
repository.
"""

import ast
import io
import re
import sys
import tokenize
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]

REFUSED: Final = {
    r"who|whom|nobody|everybody|anybody|somebody|everyone|someone|anyone": "name the noun",
    r"those who|he|she|him|his|her|himself": "name the noun",
    r"tell|tells|told|telling|says|said|saying": "report, return, print, message, contain",
    r"but for": "except",
    r"anew": "again",
    r"besides|heed|heeds|heeded|whereupon|thereupon|thereof|hitherto|lest|albeit": "a common word",
    r"so long as": "while, until or if",
    r"at the door": "name the check",
    r"so many|so much that": "name the number",
    r"nor (does|do|is|are|has|have|was|were|can|will)": "and ... not, in a sentence of its own",
    r"of which (nothing|nobody|none)|of whom": "a sentence of its own",
    r"left out:": "default:",
    r"for good|be it|as it were": "a plain word",
    r"has its turn|have their turn|word of (the|a|its)": "name the action",
}
"""Pattern of words -> what to write in their place."""

_PATTERN: Final = re.compile("|".join(rf"\b(?:{words})(?!\w)" for words in REFUSED), re.IGNORECASE)
_FENCE: Final = re.compile(r"^\s*(```|~~~)")
_CODE: Final = re.compile(r"`[^`]*`|<[^>\s][^>]*>|\]\([^)]*\)")
_PEOPLE: Final = re.compile(
    r"\b(?:users?|operators?|engineers?|readers?|people|person|newcomers?|authors?|teams?) whom?\b", re.IGNORECASE
)
"""Pronouns for people are right."""
_TOPS: Final = (
    "scheduler",
    "tasks",
    "workers",
    "leasehold",
    "emulator",
    "bench",
    "testbed",
    "examples",
    "docs",
    "tests",
)
_PAGES: Final = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
_PARTS: Final = ("*.py", "*.md")
_NOT_READ: Final = ("docs/adr/", "tests/language.py", "tests/docs/test_language.py")
"""Records of the past, and the list and the examples of the refused words."""


class Finding(NamedTuple):
    """A refused construction."""

    path: str
    line: int
    words: str

    def __str__(self) -> str:
        instead = next(
            better for words, better in REFUSED.items() if re.fullmatch(rf"(?:{words})", self.words, re.IGNORECASE)
        )
        return f"{self.path}:{self.line}: {self.words!r}; write: {instead}"


def find_refused(path: str, text: str) -> list[Finding]:
    """Return the refused constructions of one file."""
    lines = _read_python(text) if path.endswith(".py") else _read_page(text)
    return [
        Finding(path, number, found.group())
        for number, line in lines
        for found in _PATTERN.finditer(_PEOPLE.sub("", line))
    ]


def list_files() -> list[str]:
    """Return the files of the repository that are read, relative to its root."""
    found = [
        path.relative_to(ROOT).as_posix() for part in _PARTS for top in _TOPS for path in ROOT.glob(f"{top}/**/{part}")
    ]
    return sorted(name for name in (*_PAGES, *found) if not name.startswith(_NOT_READ))


def _read_page(text: str) -> Iterator[tuple[int, str]]:
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            is_code = not is_code
        elif not is_code:
            yield number, _CODE.sub(" ", line)


def _read_python(text: str) -> Iterator[tuple[int, str]]:
    """Comments, strings of two words or more, and the names of functions, classes, parameters and variables."""
    # To find the comments takes long, and few files have such a word behind a "#".
    if any(_PATTERN.search(line, line.index("#")) for line in text.splitlines() if "#" in line):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], _CODE.sub(" ", token.string)
    for node in _walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, _CODE.sub(" ", line)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, _split_name(node.name)
        elif isinstance(node, ast.arg):
            yield node.lineno, _split_name(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, _split_name(node.id)


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """As `ast.walk`, in half the time."""
    todo = deque([tree])
    while todo:
        node = todo.popleft()
        yield node
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                todo.append(value)
            elif isinstance(value, list):
                todo.extend(each for each in value if isinstance(each, ast.AST))


def _split_name(name: str) -> str:
    return name.replace("_", " ")


def find_all(paths: Iterable[str]) -> list[Finding]:
    """Return the refused constructions of these files and folders, in order."""
    wanted = tuple(paths)
    names = [name for name in list_files() if not wanted or any(_is_below(name, path) for path in wanted)]
    return [each for name in names for each in sorted(find_refused(name, (ROOT / name).read_text(encoding="utf-8")))]


def _is_below(name: str, path: str) -> bool:
    return name == path or name.startswith(path.rstrip("/") + "/")


if __name__ == "__main__":
    findings = find_all(sys.argv[1:])
    sys.stdout.writelines(f"{each}\n" for each in findings)
    sys.exit(bool(findings))
