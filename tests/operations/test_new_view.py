"""The objects of a new view are kept away from Python's garbage collector, and those of other ticks are not."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from scheduler.operations import paused_gc
from scheduler.operations.paused_gc import PausedGC
from tests.operations.harness import Harness


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_a_large_new_view_is_put_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paused_gc, "MANY", 1)
    harness = Harness()
    harness.tick()
    assert gc.get_freeze_count() > 0
    gc.unfreeze()
    harness.submit("r1")
    harness.tick()
    assert gc.get_freeze_count() == 0
    harness.restart()
    harness.tick()
    assert gc.get_freeze_count() > 0


def test_a_small_new_view_is_not_put_away() -> None:
    Harness().tick()
    assert gc.get_freeze_count() == 0


def test_a_view_is_freed_without_the_collector() -> None:
    harness = Harness()
    harness.submit("r1")
    with PausedGC():
        left = weakref.ref(harness.tick().view)
        harness.ports.view_cache.rebuild([])
        harness.tick()
        assert left() is None
