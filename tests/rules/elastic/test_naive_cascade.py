"""The cascade moves as little as it can, and serves the same reservations as the naive one, each with as much."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.reservations import Reservation, list_instances
from scheduler.model.view import Row
from tests.generated import TIMES
from tests.reference_model.cascade import Setting, Wish, serve
from tests.rules.fleets import QUICKLY
from tests.rules.playing import Document, act, ticks
from tests.rules.watching import Seen, watch

pytestmark = pytest.mark.no_cover
IDS = [f"r{number}" for number in range(8)]
MOST_ESSENTIAL, MOST_ELASTIC = 3, 5
SLOTS = st.lists(st.integers(2, 6), min_size=2, max_size=4).filter(lambda each: sum(each) >= 8)
"""Units of each slot: every reservation fits on the empty fleet."""


@st.composite
def crowds(draw: st.DrawFn) -> Document:
    """A fleet that counts units, reservations that arrive and end, and a tick each second."""
    rules = {
        "elastic": draw(st.sampled_from(["rigid", "malleable", "flexible", "yielding"])),
        "queue": draw(st.sampled_from(["fifo", "size"])),
        "profile": draw(st.sampled_from(["pack", "spread"])),
        "backfill": draw(st.booleans()),
        "preemption": draw(st.booleans()),
    }
    pool = {"system": "lab", "provider": "static", "max_leases_per_slot": 99, "lease_ttl": 0, "offline_timeout": 1e9}
    items = [(draw(st.integers(0, 8)), "submit", draw(_wishes(name))) for name in IDS]
    items += draw(st.lists(st.tuples(st.integers(1, 9), st.just("cancel"), st.sampled_from(IDS)), max_size=5))
    known = {value["id"]: at for at, name, value in items if name == "submit"}
    timeline = [act(at, name, value) for at, name, value in items if name == "submit" or known[value] < at]
    return {
        "config": {"scheduler": {**rules, "preemption_grace": 0, "confirm_timeout": 0}, "pools": {"lab": pool}},
        "slots": [
            {"id": f"lab-{number}", "pool": "lab", "state": "ready", "resources": {"units": units}}
            for number, units in enumerate(draw(SLOTS), start=1)
        ],
        "timeline": sorted([*timeline, *ticks(*range(11))], key=lambda each: (each["at"], "tick" in each)),
    }


def _wishes(name: str) -> st.SearchStrategy[Document]:
    def make(essential: int, elastic: int, size: int) -> Document:
        unit = {"resources": {"units": 1}}
        parts: list[Document] = [{"name": "core", "count": essential, **unit}]
        parts += [{"name": "more", "kind": "elastic", "count": elastic, **unit}] if elastic else []
        return {"id": name, "system": "lab", "size": size, "components": parts}

    return st.builds(make, st.integers(1, MOST_ESSENTIAL), st.integers(0, MOST_ELASTIC), st.integers(0, 3))


def _list_wishes(rows: list[Row], phase: str, queue: str) -> dict[Wish, int]:
    """Return the reservations in this phase, with the number of elastic instances that each holds."""
    found = {}
    for row in rows:
        if isinstance(row, Reservation) and row.phase == phase:
            rank: tuple[Any, ...] = (row.created_at, row.sequence)
            rank = (row.request.size, *rank) if queue == "size" else rank
            essential, elastic = (len(list_instances(row.request, kind)) for kind in ("essential", "elastic"))
            found[Wish(row.id, rank, essential, elastic)] = sum(each.kind == "elastic" for each in row.leases)
    return found


def each_reservation_holds_what_the_naive_cascade_gives(seen: Seen) -> None:
    rules = seen.rules.scheduler
    total = int(sum(slot.resources["units"] for slot in seen.view_after.slots.values() if slot.resources))
    leased, pending = (_list_wishes(seen.before, phase, rules.queue) for phase in ("leased", "pending"))
    expected = serve(total, leased, list(pending), Setting(rules.elastic, rules.backfill, rules.preemption))
    after = _list_wishes(seen.after, "leased", rules.queue)
    assert {wish.name: wish.essential + elastic for wish, elastic in after.items()} == expected


@settings(QUICKLY, max_examples=50 * TIMES)
@given(crowds())
def test_the_same_reservations_are_served_with_as_much_as_by_the_naive_cascade(crowd: Document) -> None:
    watch(crowd, each_reservation_holds_what_the_naive_cascade_gives)
