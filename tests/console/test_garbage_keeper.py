"""The rows of the view are kept away from Python's garbage collector, and cycles of garbage are not."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from leasehold.web.feed import CHANGES, GarbageKeeper


class Node:
    """An object that may refer to itself."""

    other: "Node | None" = None


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_a_new_view_is_put_away_at_once() -> None:
    gc.unfreeze()
    GarbageKeeper().note(0, is_new=True)
    assert gc.get_freeze_count() > 0


def test_changed_rows_are_put_away_when_they_are_many() -> None:
    gc.unfreeze()
    keeper = GarbageKeeper()
    keeper.note(CHANGES - 1, is_new=False)
    assert gc.get_freeze_count() == 0
    keeper.note(1, is_new=False)
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
    keeper.note(1, is_new=False)
    assert gc.get_freeze_count() == 0


def test_cycles_of_garbage_are_freed_first() -> None:
    node = Node()
    node.other = node
    known = weakref.ref(node)
    del node
    GarbageKeeper().note(0, is_new=True)
    assert known() is None


def test_rows_that_were_put_away_are_freed_when_they_are_replaced() -> None:
    rows = {"a": Node()}
    known = weakref.ref(rows["a"])
    GarbageKeeper().note(0, is_new=True)
    rows["a"] = Node()
    assert known() is None
