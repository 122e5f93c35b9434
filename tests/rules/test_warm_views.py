"""A view that was changed row by row, with plans meanwhile, plans as a new view of the same rows."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.accounts import Account
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.pending_queue import PendingQueue
from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import KINDS, ROW_TYPES, Change, Gone, Row, View
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from tests.builders import NOW, a_lease, a_reservation, a_slot, some_rules
from tests.rules.fleets import QUICKLY

# Tracing triples their time, and the lines that they run are those of the scenarios.
pytestmark = pytest.mark.no_cover

POOLS = ("linux", "arm", "away")
"""The rules know the first two."""
RULES = [
    some_rules(
        {
            "scheduler": {"queue": queue, "profile": profile},
            "pools": {
                "linux": {"max_leases_per_slot": 2, "resources": {"cpus": 4}, "lease_ttl": 60},
                "arm": {"system": "x86_64-linux", "max_slots": 5, "min_slots": 1},
            },
        }
    )
    for queue, profile in (("fifo", "pack"), ("priority", "spread"), ("quota", "pack"))
]
VERSIONS = st.integers(1, 5)


@st.composite
def slots(draw: st.DrawFn) -> Slot:
    """One of few, which may change its pool too although no slot does: the view accepts every row."""
    name = f"{draw(st.sampled_from(POOLS))}-{draw(st.sampled_from([1, 2, 10, 11]))}"
    pool = {} if draw(st.integers(0, 9)) else {"pool": draw(st.sampled_from(POOLS))}
    return a_slot(
        name,
        version=draw(VERSIONS),
        marked_at=float(draw(st.integers(0, 2))),
        state=draw(st.sampled_from(["ready", "ready", "ready", "empty", "booting", "draining"])),
        resources=draw(st.sampled_from([None, {"cpus": 2}, {"cpus": 8}])),
        labels=draw(st.sampled_from([{}, {"zone": "a"}, {"zone": "b", "disk": "ssd"}])),
        cordoned=draw(st.integers(0, 9)) == 0,
        uses=draw(st.integers(0, 1)),
        interrupted_at=NOW if draw(st.integers(0, 9)) == 0 else None,
        **pool,
    )


@st.composite
def reservations(draw: st.DrawFn) -> Reservation:
    """One of few, mostly pending; if it holds leases, they are on any slot."""
    phase = draw(st.sampled_from(["pending", "pending", "pending", "leased", "failed", "released"]))
    held: dict[str, Any] = {}
    if phase == "leased":
        slot = f"{draw(st.sampled_from(POOLS))}-{draw(st.sampled_from([1, 2]))}"
        held = {"leases": (a_lease(slot, resources={"cpus": 1}),), "leased_at": NOW - 5}
    number = draw(st.integers(0, 9))
    return a_reservation(
        f"r{number}",
        version=draw(VERSIONS),
        marked_at=float(draw(st.integers(0, 2))),
        sequence=number,
        phase=phase,
        priority=draw(st.integers(0, 2)),
        created_at=NOW - draw(st.integers(0, 3)),
        expires_at=draw(st.sampled_from([None, None, NOW - 1, NOW + 30])),
        restart_policy=draw(st.sampled_from(["never", "on_failure"])),
        resources=draw(st.sampled_from([{}, {"cpus": 1}, {"cpus": 3}])),
        labels=draw(st.sampled_from([{}, {}, {"zone": "a"}])),
        prefers=draw(st.sampled_from([{}, {"disk": "ssd"}])),
        account=draw(st.sampled_from([None, "A", "B"])),
        max_runtime=draw(st.sampled_from([None, None, 3.0, 25.0])),
        declined=draw(st.sampled_from([(), (), ("linux-1",)])),
        interruptions=draw(st.sampled_from([0, 0, 1])),
        **held,
    )


def holds() -> st.SearchStrategy[Hold]:
    """A quota that is reached, or a lack of capacity."""
    return st.builds(_hold, st.sampled_from(["quota", "throttled"]), VERSIONS, st.sampled_from([-1.0, 20.0]))


def _hold(kind: Any, version: int, seconds: float) -> Hold:
    name = hold_id("linux", kind)
    return Hold(id=name, version=version, pool="linux", kind=kind, refused_at=NOW - 5, until=NOW + seconds)


def accounts() -> st.SearchStrategy[Account]:
    """One of two, with something left at some level, or forgotten for earlier reservations."""
    balances = st.sampled_from([(0.0, 9.0, 0.0, 0.0, 0.0), (50.0, 0.0, 0.0, 0.0, 0.0), (-1.0, 0.0, 0.0, 0.0, 0.0)])
    return st.builds(
        Account,
        id=st.sampled_from(["A", "B"]),
        version=VERSIONS,
        balance=balances,
        charged_at=st.just(NOW),
        forgotten_upto=st.sampled_from([0, 0, 5]),
        enforce_max_runtime=st.booleans(),
    )


def changes() -> st.SearchStrategy[Change]:
    """Any row in any version, or its removal."""
    row = st.one_of(slots(), reservations(), reservations(), holds(), accounts())
    gone = row.map(lambda each: Gone(KINDS[type(each)], each.id, each.version + 1))
    return st.one_of(row, row, row, row, gone)


@QUICKLY
@given(
    st.lists(st.lists(changes(), max_size=12), min_size=1, max_size=5), st.sampled_from(RULES), st.sampled_from([0, 9])
)
def test_a_view_that_was_updated_plans_as_a_new_one(
    batches: list[list[Change]], rules: Any, unused_shapes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scheduler.model.view.UNUSED_SHAPES", unused_shapes)
        _compare_with_new_views(batches, rules)


def _compare_with_new_views(batches: list[list[Change]], rules: Any) -> None:
    view, cache = View(), PlanCache()
    for number, batch in enumerate(batches):
        if number % 2:
            view.apply_all(batch)
        else:
            for change in batch:
                view.apply(change)
        rows = [row for kind in ROW_TYPES for row in view.rows(kind).values()]
        assert plan(view, rules, NOW + number, cache) == plan(View(rows), rules, NOW + number)
        assert plan(view, rules, NOW + number, cache) == plan(View(rows[::-1]), rules, NOW + number)


@QUICKLY
@given(st.lists(st.lists(changes(), max_size=12), min_size=1, max_size=5), st.booleans())
def test_rows_that_are_applied_together_make_the_tables_of_single_ones(
    batches: list[list[Change]], is_followed: bool
) -> None:
    together, single = View(), View()
    if is_followed:
        assert together.waiters.follow() == single.waiters.follow()
    for batch in batches:
        together.apply_all(batch)
        for change in batch:
            single.apply(change)
        assert _describe(together) == _describe(single)
    assert together.waiters.follow() == single.waiters.follow()


def _describe(view: View) -> dict[str, Any]:
    """Return the tables of a view, those of shapes by what the shapes contain."""
    tables = {name: value for name, value in vars(view).items() if not name.startswith("_")}
    shapes = {name: (shape.system, shape.components, shape.labels) for name, shape in view.shapes.items()}
    assert len({id(shape) for shape in view.shapes.values()}) == len(set(view.shapes.values()))
    return {
        **tables,
        "shapes": shapes,
        "touched": set(view.touched),
        "mortal": [view.mortal.find_due(NOW + after) for after in (0, 60)],
        "limited": {
            name: [sorted(row.id for row in queue.find_due(NOW + after)[0]) for after in (0, 60)]
            for name, queue in view.limited.items()
        },
        "waiters": view.waiters.list()[:2],
        "recent_writes": view.recent_writes._groups,
        "pools": {pool: view.pools[pool].list() for pool in view.pools},
    }


WAITS = some_rules({"scheduler": {"starvation_guard": 2, "confirm_timeout": 7}, "pools": {"linux": {"lease_ttl": 9}}})
"""Here reservations become protected, and much falls due, within seconds."""


@QUICKLY
@given(st.lists(changes(), max_size=12), st.sampled_from([*RULES, WAITS]), st.lists(st.floats(0, 40), max_size=4))
def test_a_later_tick_on_an_unchanged_view_plans_as_on_a_new_one(
    rows: list[Change], rules: Any, seconds: list[float]
) -> None:
    view, cache = View(), PlanCache()
    for row in rows:
        view.apply(row)
    kept = [row for kind in ROW_TYPES for row in view.rows(kind).values()]
    for now in sorted(NOW + after for after in (0.0, 1.0, *seconds)):
        assert plan(view, rules, now, cache) == plan(View(kept), rules, now)


def test_a_tick_is_planned_again_when_a_row_or_the_rules_have_changed() -> None:
    view, rules = View([a_slot("linux-1", state="empty"), a_reservation("r1", priority=0)]), RULES[1]
    cache = PlanCache()
    first = plan(view, rules, NOW, cache)
    assert plan(view, rules, NOW + 1, cache) is first
    assert plan(view, RULES[0], NOW + 1, cache) is not first
    first = plan(view, rules, NOW + 1, cache)
    view.apply(a_reservation("r1", version=2, priority=1))
    assert plan(view, rules, NOW + 1, cache).decisions != first.decisions


def test_a_cache_that_follows_another_view_starts_empty() -> None:
    """Also where both views have taken over as many changes."""
    rows: list[Row] = [a_slot("linux-1"), a_reservation("r1")]
    cache = PlanCache()
    plan(View([rows[0]]), RULES[1], NOW, cache)
    for other in ([a_slot("linux-2")], rows):
        assert plan(View(other), RULES[1], NOW, cache) == plan(View(other), RULES[1], NOW)


def test_a_row_that_leaves_and_comes_back_as_the_same_object_waits_once() -> None:
    """A search for a change lays a row over the view and restores the old one, sometimes without a plan in between."""
    row = a_reservation("r1", version=1)
    waiters, shape = PendingQueue(), View([row]).shapes["r1"]
    waiters.add(row, shape)
    for _ in range(2):
        waiters.remove(row, shape)
        waiters.add(row, shape)
    assert [each.id for each in waiters.list()[0]] == ["r1"]


def test_a_view_forgets_the_shapes_of_reservations_that_have_left_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.model.view.UNUSED_SHAPES", 3)
    stays = a_reservation("stays", labels={"job": "stays"})
    view = View([stays])
    counts = set()
    for number in range(40):
        name = f"r{number}"
        view.apply(a_reservation(name, labels={"job": name}))
        assert len(set(view.shapes.values())) == 2
        view.apply(Gone("reservations", name, 2))
        counts.add(len(view._interned))
    assert max(counts) == 3 + 2 * 2 + 1
    view.apply(a_reservation("alike", labels={"job": "stays"}))
    assert view.shapes["alike"] is view.shapes["stays"]
