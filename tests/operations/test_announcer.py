"""Chunks of a plan are announced in the order of their commits, each while the next one is written."""

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from scheduler.model.view import Change
from scheduler.operations.change_set import ChangeSet
from scheduler.operations.tick import commit as committing
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import ViewUnavailableError
from tests.operations.harness import CONFIG, Harness

SECONDS = 30
NAMES = ["r1", "r2", "r3", "r4"]


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Four reservations that the next tick leases, each in a chunk of its own."""
    monkeypatch.setattr(committing, "CHUNK", 1)
    config = CONFIG | {"pools": {"linux": CONFIG["pools"]["linux"] | {"max_leases_per_slot": 5}}}
    made = Harness(config).leased("r0")
    for name in NAMES:
        made.submit(name)
    return made


def watch_publishes(harness: Harness, monkeypatch: pytest.MonkeyPatch, act: Any) -> list[str]:
    """Return the list to which each publish of a leased reservation is added, after `act` was called with its name."""
    view_cache, published = harness.ports.view_cache, list[str]()
    publish = view_cache.publish

    def watched(changes: Sequence[Change]) -> bool:
        for name in (each.id for each in changes if getattr(each, "phase", None) == "leased"):
            act(name)
            published.append(name)
        return publish(changes)

    monkeypatch.setattr(view_cache, "publish", watched)
    return published


def test_the_next_chunk_is_written_while_a_chunk_is_announced(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = dict(pairwise(NAMES))
    written = {name: threading.Event() for name in NAMES}
    flush = UnitOfWork.flush

    def flush_watched(work: UnitOfWork) -> ChangeSet:
        for name, row in work.reservations.items():
            if row.phase == "leased" and name in written:
                written[name].set()
        return flush(work)

    monkeypatch.setattr(UnitOfWork, "flush", flush_watched)

    def await_next(name: str) -> None:
        assert name not in following or written[following[name]].wait(SECONDS), f"the chunk after {name} waits"

    published = watch_publishes(harness, monkeypatch, await_next)
    harness.tick()
    assert published == NAMES


def test_the_error_of_an_announcement_ends_the_tick_and_what_was_written_stays(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        if name == "r2":
            raise ViewUnavailableError("no Redis")

    published = watch_publishes(harness, monkeypatch, fail)
    with pytest.raises(ViewUnavailableError, match="no Redis"):
        harness.tick()
    assert published == ["r1"]
    assert harness.phase("r2") == "leased"
    monkeypatch.undo()
    harness.tick()
    assert {harness.phase(name) for name in NAMES} == {"leased"}


def test_no_thread_is_left_after_a_tick(harness: Harness) -> None:
    harness.tick()
    assert not [each.name for each in threading.enumerate() if each.name.startswith("leasehold-announce")]
