"""The smallest change that would end a wait: applied as printed, it does, and no smaller one of its kind does."""

import json
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from scheduler.explain.changes.kinds import KINDS_OF_CHANGE, end_lease
from scheduler.explain.changes.pools import raise_price_factor
from scheduler.explain.changes.slots import enlarge_slot
from scheduler.explain.search import MOST_PLANS, Kind, Search, Suggestion, describe_change, suggest_change
from scheduler.model.decisions import WAITING_CODES
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.model.view import Row, View
from tests.builders import NOW, a_component, a_lease, a_reservation, a_slot, some_rules
from tests.rules.playing import Document
from tests.rules.smaller import list_smaller
from tests.rules.waits import Look, a_fleet, is_served_after, list_waiting, look_at

OFFERINGS = [
    {"name": "small", "price": 1, "resources": {"cpus": 2}},
    {"name": "big", "price": 9, "resources": {"cpus": 32}},
]
HUGE = "offering huge would fit and is not in the pool linux"
STATIC = {"provider": "static", "resources": {"cpus": 4}}
THREE = [a_slot(f"linux-{number}", resources={"cpus": 4}) for number in range(1, 4)]


def wish(name: str = "r1", **fields: Any) -> Reservation:
    return a_reservation(name, sequence=1, **fields)


def holder(slot: str, cpus: float) -> Reservation:
    return a_reservation(f"on-{slot}", phase="leased", leases=(a_lease(slot, resources={"cpus": cpus}),))


def a_hold(subject: str) -> Hold:
    fields: dict[str, Any] = {"id": hold_id("linux", "capacity", subject), "pool": "linux", "kind": "capacity"}
    return Hold(subject=subject, refused_at=NOW, until=NOW + 40, **fields)


CASES: dict[str, tuple[dict[str, Any], list[Row], str | None]] = {
    # the rules of the pool, the rows, the text
    "on hold": ({}, [wish(priority=0), a_slot("linux-1")], "a priority above 0 would do"),
    "suspended": ({}, [wish(suspended=True), a_slot("linux-1")], "it would be placed if it were resumed"),
    "cordoned": (
        {"provider": "static"},
        [wish(), a_slot("linux-1", state="draining"), a_slot("linux-3", cordoned=True)],
        "slot linux-3 would do and is cordoned",
    ),
    "a hold": (
        {"offerings": OFFERINGS, "price_factor": 1},
        [wish(resources={"cpus": 1}), Slot(id="linux-1", pool="linux"), a_hold("small")],
        "the launch back-off of small of pool linux (capacity) ends in 40 s",
    ),
    "max_slots": (
        {"max_slots": 1},
        [wish(), a_slot("linux-1"), a_reservation("h", phase="leased", leases=(a_lease(),))],
        "pool linux is at its max_slots of 1: 2 would do",
    ),
    "max_slots of a gang": (
        {"max_slots": 0, "resources": {"cpus": 1}},
        [wish(components=(a_component(count=3, resources={"cpus": 1}),))],
        "pool linux is at its max_slots of 0: 3 would do",
    ),
    "resources": (
        STATIC,
        [wish(resources={"cpus": 4}), a_slot("linux-1", resources={"cpus": 4}), holder("linux-1", 2)],
        "needs 2 more cpus on one slot (linux-1)",
    ),
    "resources, and an earlier reservation that would take them": (
        STATIC,
        [wish("r0", resources={"cpus": 3}), wish(resources={"cpus": 4}), a_slot("linux-1", resources={"cpus": 2})],
        "needs 5 more cpus on one slot (linux-1)",
    ),
    "resources for a part of a gang, where another part takes the first slot": (
        STATIC,
        [
            wish(components=(a_component("a", resources={"cpus": 2}), a_component("b", resources={"cpus": 6}))),
            *THREE,
        ],
        "needs 2 more cpus on one slot (linux-2)",
    ),
    "resources for a gang with one instance that does not fit": (
        STATIC,
        [wish(components=(a_component(count=3, resources={"cpus": 2}),)), a_slot("linux-1", resources={"cpus": 4})],
        "needs 2 more cpus on one slot (linux-1)",
    ),
    "labels for a part of a gang": (
        STATIC,
        [wish(components=(a_component("a"), a_component("b", labels={"disk": "ssd"}))), *THREE],
        "needs disk=ssd on one slot (linux-1)",
    ),
    "labels for two parts of a gang": (
        STATIC,
        [
            wish(components=(a_component("a", labels={"zone": "b"}), a_component("b", labels={"disk": "ssd"}))),
            *THREE,
        ],
        "two changes: needs zone=b on one slot (linux-1); needs disk=ssd on one slot (linux-1)",
    ),
    "labels": (
        {"provider": "static"},
        [wish(labels={"disk": "ssd"}), a_slot("linux-1")],
        "needs disk=ssd on one slot (linux-1)",
    ),
    "an offering of another pool": (
        {"offerings": OFFERINGS[:1]},
        [wish(resources={"cpus": 8}), Slot(id="linux-1", pool="linux")],
        HUGE,
    ),
    "an offering that no pool has": (
        {"offerings": OFFERINGS[:1]},
        [wish(resources={"cpus": 99}), Slot(id="linux-1", pool="linux")],
        "needs an offering with 99 cpus in pool linux",
    ),
    "an offering that another pool has under a name that is used here": (
        {"offerings": [{"name": "huge", "price": 1, "resources": {"cpus": 1}}]},
        [wish(resources={"cpus": 16}), Slot(id="linux-1", pool="linux")],
        "needs an offering with 16 cpus in pool linux",
    ),
    "an offering that no pool has, where the pool's own one has a name": (
        {"offerings": [{"name": "larger-1", "price": 1, "resources": {"cpus": 2}}]},
        [wish(resources={"cpus": 99}), Slot(id="linux-1", pool="linux")],
        "needs an offering with 99 cpus in pool linux",
    ),
    "a machine of EC2 that is too small: a larger offering, not a larger machine": (
        {"offerings": OFFERINGS},
        [
            wish(resources={"cpus": 99}),
            a_slot("linux-1", offering="small", resources={"cpus": 2}),
            Slot(id="linux-2", pool="linux"),
        ],
        "needs an offering with 99 cpus in pool linux",
    ),
    "a machine of EC2 that is full, where the pool is too": (
        {"resources": {"cpus": 4}, "max_slots": 1},
        [wish(resources={"cpus": 4}), a_slot("linux-1", resources={"cpus": 4}), holder("linux-1", 2)],
        "pool linux is at its max_slots of 1: 2 would do",
    ),
    "a machine of EC2 that is full and too small, where the pool is full too": (
        {"offerings": OFFERINGS[:1], "max_slots": 1},
        [wish(resources={"cpus": 99}), a_slot("linux-1", resources={"cpus": 2}), holder("linux-1", 2)],
        "two changes: needs an offering with 99 cpus in pool linux; pool linux is at its max_slots of 1: 2 would do",
    ),
    "a machine of EC2 that lacks a label: the label on new ones, not on it": (
        {"resources": {"cpus": 4}},
        [wish(labels={"disk": "ssd"}), a_slot("linux-1", resources={"cpus": 4}), Slot(id="linux-2", pool="linux")],
        "needs disk=ssd on new slots of pool linux",
    ),
    "larger machines": (
        {"resources": {"cpus": 4}},
        [wish(resources={"cpus": 64}), Slot(id="linux-1", pool="linux")],
        "needs machines with 64 cpus in pool linux",
    ),
    "hosts": (
        {"provider": "static"},
        [
            wish(components=(a_component(count=3),)),
            a_slot("linux-1"),
            a_slot("linux-2"),
            a_reservation("h", phase="leased", leases=(a_lease(),)),
        ],
        "2 more hosts like linux-1 would do",
    ),
    "a host, where there is none": (STATIC, [wish(resources={"cpus": 1})], "one more host in pool linux would do"),
    "hosts of a size that the rules do not contain": (
        STATIC,
        [wish(components=(a_component(count=2, resources={"cpus": 6}),), labels={"disk": "ssd"})],
        "2 more hosts with 6 cpus, disk=ssd in pool linux would do",
    ),
    "hosts for parts of a gang that differ": (
        {"provider": "static"},
        [wish(components=(a_component("a", resources={"cpus": 6}), a_component("b", resources={"gpus": 2})))],
        "2 more hosts with 6 cpus, 2 gpus in pool linux would do",
    ),
    "a host that counts leases": ({"provider": "static"}, [wish()], "one more host of any size in pool linux would do"),
    "a label and more on one slot": (
        STATIC,
        [wish(resources={"cpus": 6}, labels={"disk": "ssd"}), a_slot("linux-1", resources={"cpus": 4})],
        "two changes: needs disk=ssd on one slot (linux-1); needs 2 more cpus on one slot (linux-1)",
    ),
    "an offering and a slot": (
        {"offerings": OFFERINGS[:1], "max_slots": 1},
        [wish(resources={"cpus": 8}), a_slot("linux-1", offering="small", state="terminating")],
        f"two changes: {HUGE}; pool linux is at its max_slots of 1: 2 would do",
    ),
    "a label and an offering": (
        {"offerings": OFFERINGS[:1]},
        [wish(resources={"cpus": 8}, labels={"disk": "ssd"}), Slot(id="linux-1", pool="linux")],
        f"two changes: needs disk=ssd on new slots of pool linux; {HUGE}",
    ),
    "on hold, and no capacity": (
        {"max_slots": 1},
        [wish(priority=0), a_slot("linux-1"), a_reservation("h", phase="leased", leases=(a_lease(),))],
        "two changes: a priority above 0 would do; pool linux is at its max_slots of 1: 2 would do",
    ),
    "cordoned and too small": (
        STATIC,
        [wish(resources={"cpus": 6}), a_slot("linux-1", resources={"cpus": 4}, cordoned=True)],
        "two changes: slot linux-1 would do and is cordoned; needs 2 more cpus on one slot (linux-1)",
    ),
    "labels of new slots": (
        {"resources": {"cpus": 4}},
        [wish(labels={"disk": "ssd"}), Slot(id="linux-1", pool="linux")],
        "needs disk=ssd on new slots of pool linux",
    ),
    "larger machines for a gang": (
        {"resources": {"cpus": 4}, "max_slots": 3},
        [
            wish(components=(a_component("a", resources={"gpus": 8}), a_component("b", resources={"gpus": 6}))),
            *(Slot(id=f"linux-{number}", pool="linux") for number in range(1, 4)),
        ],
        "needs machines with 8 gpus in pool linux",
    ),
    "no pool for its system": (
        {},
        [wish(system="aarch64-linux")],
        "needs a pool for aarch64-linux: one like linux with max_slots 1 would do",
    ),
    "no pool of that name": (
        {},
        [wish(system=None, pool="gone")],
        "needs a pool of that name (gone): one like linux with max_slots 1 would do",
    ),
    "served": ({}, [wish(), a_slot("linux-1")], None),
    "in flight": ({}, [wish(), Slot(id="linux-1", pool="linux")], None),
    "no change of these": (
        {"provider": "static"},
        [wish(components=(a_component(labels={"a": "c"}),), labels={"a": "b"})],
        None,
    ),
}


def make_search(pool: dict[str, Any], rows: list[Row], **options: Any) -> Search:
    spare = {"system": "other", "max_slots": 1, "offerings": [{"name": "huge", "price": 9, "resources": {"cpus": 32}}]}
    view = View(rows)
    rules = some_rules({"pools": {"linux": pool, "spare": spare}})
    return Search(view, rules, view.reservations["r1"], NOW, **options)


@pytest.mark.parametrize("name", CASES)
def test_the_smallest_change_is_reported(name: str) -> None:
    pool, rows, text = CASES[name]
    search = make_search(pool, rows)
    found = suggest_change(search, KINDS_OF_CHANGE)
    assert (found.text if found else None) == text
    if found:
        assert search.serves(found)


@pytest.mark.parametrize("name", CASES)
def test_a_search_leaves_the_view_as_it_was(name: str) -> None:
    pool, rows, _ = CASES[name]
    search, before = make_search(pool, rows), View(rows)
    suggest_change(search, KINDS_OF_CHANGE)
    for kind in ("slots", "reservations", "holds", "leases_on", "special"):
        assert getattr(search.view, kind) == getattr(before, kind)


def test_a_search_ends_when_its_time_is_over() -> None:
    pool, rows, _ = CASES["resources"]
    asked: list[None] = []

    def has_time() -> bool:
        asked.append(None)
        return len(asked) < 2

    search = make_search(pool, rows, has_time=has_time)
    assert suggest_change(search, KINDS_OF_CHANGE) is None
    assert search.is_cut_short
    assert len(asked) == 2


def test_a_search_looks_at_no_more_slots_when_its_time_is_over() -> None:
    """It is started for a queue with other reservations: the time for candidates counts as that for plans does."""
    sizes = [a_slot(f"linux-{number}", resources={"cpus": number}) for number in range(1, 9)]
    answers = iter([True, True])
    search = make_search(STATIC, [wish(resources={"cpus": 99}), *sizes], has_time=lambda: next(answers, False))
    assert enlarge_slot(search) is None
    assert search.is_cut_short


def test_equal_slots_and_requests_are_looked_at_once() -> None:
    alike = [a_slot(f"linux-{number}", resources={"cpus": 4}) for number in range(1, 100)]
    others = [wish(f"r{number}", resources={"cpus": 8}) for number in range(2, 100)]
    asked: list[None] = []

    def has_time() -> bool:
        asked.append(None)
        return True

    search = make_search(STATIC, [wish(resources={"cpus": 6}), *others, *alike], has_time=has_time)
    found = enlarge_slot(search)
    assert found is not None
    assert found.text == "needs 2 more cpus on one slot (linux-1)"
    assert len(asked) == 2, "a slot that stands for all, and a plan"


def test_a_search_makes_at_most_the_allowed_number_of_plans() -> None:
    search = make_search(*CASES["resources"][:2])
    nothing = Suggestion(kind="nothing", text="")
    cut_short = []
    for _ in range(MOST_PLANS + 1):
        search.serves(nothing)
        cut_short.append(search.is_cut_short)
    assert cut_short == [False] * MOST_PLANS + [True]


WAITS = frozenset(WAITING_CODES) - {"booting", "no_quota", "account_limit"}
"""Codes of waits that are searched; nothing can be done about `booting`, and these fleets have no accounts."""
KINDS = {
    *("hold", "cordon", "wait", "max_slots", "resources", "labels", "pool_labels", "offering"),
    *("machines", "hosts", "pool", "max_leases_per_slot", "overtaking", "budget"),
}
"""Kinds of change that are found, alone or as one of two. (A price factor and the end of another lease come after kinds
that serve nearly always.)
"""
MOST_OF_A_CODE = 60
"""Searches for reservations that wait with one code, so that the other codes are found too."""


@pytest.mark.timeout(300)
def test_the_printed_change_ends_the_wait_and_less_of_it_does_not() -> None:
    """More than two hundred pending reservations of generated fleets, for every waiting code and every kind of change.
    The change is applied as `leasehold explain --json` prints it.
    """
    kinds, codes, asked = Counter[str](), Counter[str](), Counter[str]()
    parts: set[str] = set()
    for seed in range(10_000):
        fleet = a_fleet(Random(seed))
        look = look_at(fleet)
        for each in list_waiting(look):
            asked[each.code] += 1
            found = search_in(look, each.reservation) if asked[each.code] <= MOST_OF_A_CODE else None
            if found is not None:
                kinds[found["kind"]] += 1
                codes[each.code] += 1
                check_change(fleet, look, found, each.reservation)
        parts = {part for kind in kinds for part in kind.split(" and ")}
        if kinds.total() >= 200 and codes.keys() == WAITS and parts >= KINDS:
            break
    assert kinds.total() >= 200
    assert codes.keys() == WAITS
    assert parts >= KINDS
    assert sum(" and " in kind for kind in kinds) >= 8, kinds


@pytest.mark.parametrize(("kind", "least"), [(raise_price_factor, 3), (end_lease, 20)])
def test_kinds_of_change_that_are_rarely_found_end_waits_too(kind: Kind, least: int) -> None:
    """A price factor and the end of another lease are found only where nothing that is tried before them would do,
    which is rare: here they are searched alone.
    """
    count = 0
    for seed in range(10_000):
        fleet = a_fleet(Random(seed))
        look = look_at(fleet)
        for each in list_waiting(look):
            found = search_in(look, each.reservation, [kind])
            if found is not None:
                count += 1
                check_change(fleet, look, found, each.reservation)
        if count >= least:
            break
    assert count >= least


def check_change(fleet: Document, look: Look, change: Document, name: str) -> None:
    """The change serves that reservation when it is applied, and less of it does not."""
    assert is_served_after(fleet, change, name), f"{fleet}, {name}: {change}"
    changed = [each["slot"] for each in change["actions"] if "slot" in each]
    assert not any(look[1].pools[each["pool"]].is_elastic for each in changed), (
        "an operator changes hosts, not machines"
    )
    for less in list_smaller(look, change):
        assert not is_served_after(fleet, less, name), f"{fleet}, {name}: {change}; and so does {less}"


def search_in(look: Look, name: str, kinds: Sequence[Kind] = KINDS_OF_CHANGE) -> Document | None:
    """Return the change as it is printed."""
    view, rules, now = look
    found = suggest_change(Search(view, rules, view.reservations[name], now), kinds)
    return json.loads(json.dumps(describe_change(view, found))) if found is not None else None
