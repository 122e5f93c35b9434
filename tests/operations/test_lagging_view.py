"""The committed decisions keep the rules, although the plan was made on a view that lags."""

from collections.abc import Sequence
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.view import Change
from scheduler.view.memory import InMemoryRedis, MemoryViewCache
from tests.rules.fleets import QUICKLY, fleets
from tests.rules.playing import Document
from tests.rules.test_plans import no_reservation_is_lost, no_slot_is_overfull
from tests.rules.watching import Seen, WatchedPlayer

# As in tests/rules/test_plans.py.
pytestmark = pytest.mark.no_cover


class LateViewCache(MemoryViewCache):
    """A view cache that, while `is_late`, keeps publishes back."""

    def __init__(self, redis: InMemoryRedis) -> None:
        super().__init__(redis)
        self.is_late = False
        self._kept_back: list[Change] = []

    def publish(self, changes: Sequence[Change]) -> bool:
        self._kept_back += changes
        return self.is_late or self.deliver()

    def deliver(self) -> bool:
        """Publish the changes that were kept back, the last one first."""
        changes, self._kept_back = self._kept_back[::-1], []
        return super().publish(changes)


class LatePlayer(WatchedPlayer):
    """Plays a scenario with a view that is late before some ticks."""

    def __init__(self, document: Document, lateness: Sequence[bool]) -> None:
        self._lateness = cycle(lateness)
        super().__init__(document, _check)
        self._view_cache = LateViewCache(InMemoryRedis(lambda: self.cluster.event_queue.now))
        self.cluster.ports.view_cache = self._view_cache

    def _begin(self) -> None:
        self._view_cache.is_late = next(self._lateness)
        if not self._view_cache.is_late:
            self._view_cache.deliver()
        super()._begin()


def _check(seen: Seen) -> None:
    no_slot_is_overfull(seen)
    no_reservation_is_lost(seen)


@QUICKLY
@given(fleets(), st.lists(st.booleans(), min_size=1, max_size=6))
def test_on_a_lagging_view_no_slot_is_leased_twice_and_no_reservation_is_lost(
    fleet: Document, lateness: list[bool]
) -> None:
    player = LatePlayer(fleet, lateness)
    for _ in player.play():
        pass
    assert [event for event in player.cluster.store.events if "no legal move" in str(event.detail)] == []
