"""A change finds its code by syntax."""

import ast

import pytest

from tests.mutations.anchor import Anchor, AnchorError, change

SOURCE = """
LIMIT = 3

class Queue:
    def take(self, now):
        if now > LIMIT:
            self.forget(now)
        return min(now, LIMIT)

    def drop(self, now):
        return now > LIMIT
"""


def _changed(function: str, old: str, new: str, source: str = SOURCE) -> str:
    return ast.unparse(change(source, Anchor("a.module", function, old, new)))


@pytest.mark.parametrize(
    ("function", "old", "new", "before", "after"),
    [
        ("Queue.take", "now > LIMIT", "now >= LIMIT", "if now > LIMIT", "if now >= LIMIT"),  # not that of `drop`
        ("Queue.take", "LIMIT", "4", "", ""),  # twice in the function: refused
        ("", "LIMIT = 3", "LIMIT = 4", "LIMIT = 3", "LIMIT = 4"),  # of the module
        ("Queue.take", "self.forget(now)", "", "self.forget(now)", "pass"),  # the only statement of its block
        ("Queue.take", "return min(now, LIMIT)", "return now", "return min(now, LIMIT)", "return now"),
    ],
)
def test_the_code_of_the_function_is_replaced(function: str, old: str, new: str, before: str, after: str) -> None:
    if not before:
        with pytest.raises(AnchorError, match=r"^a\.module, Queue\.take: expected 1 occurrence of `LIMIT`, found 2$"):
            _changed(function, old, new)
        return
    assert _changed(function, old, new) == ast.unparse(ast.parse(SOURCE)).replace(before, after, 1)


def test_layout_comments_and_lines_do_not_matter() -> None:
    moved = SOURCE.replace(
        "        if now > LIMIT:", "        other = 1  # new\n        if (now\n          > LIMIT):  # why"
    )
    assert "if now >= LIMIT:" in _changed("Queue.take", "now>LIMIT", "now >= LIMIT", moved)


@pytest.mark.parametrize(
    ("function", "old", "message"),
    [
        ("Queue.take", "now < LIMIT", "a.module, Queue.take: expected 1 occurrence of `now < LIMIT`, found 0"),
        ("Queue.give", "now > LIMIT", "a.module: expected 1 definition of `Queue.give`, found 0"),
        ("", "now > LIMIT", "a.module, the whole module: expected 1 occurrence of `now > LIMIT`, found 2"),
    ],
)
def test_code_that_is_not_there_once_is_refused_in_one_line(function: str, old: str, message: str) -> None:
    with pytest.raises(AnchorError) as caught:
        _changed(function, old, "True")
    assert str(caught.value) == message
