"""The matrix of conditions agrees with the waiting code of the tick, and its evidence states the facts."""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any, Final

import pytest

from scheduler.explain import matrix
from scheduler.explain.matrix import CODE_OF, Condition, Findings, Queued, examine, replay
from scheduler.model.accounts import Account
from scheduler.model.decisions import Plan
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.view import Row, View
from scheduler.model.waiting_codes import WAITING_CODES, WaitingCode
from scheduler.policy.plan import plan
from tests.builders import NOW, a_component, a_lease, a_reservation, a_slot, some_rules
from tests.rules.explain.test_changes_of_accounts import CASES, search_among
from tests.rules.playing import a_pool, a_scenario, a_wish, tick
from tests.rules.waits import Look, a_fleet, look_at

LOOKED_AT: Final = 120
"""How many generated fleets one run looks at."""
OF_THE_PLAN: Final = {"account_limit", "behind_queue", "booting", "gang_incomplete", "no_capacity"}
"""Codes that follow from the whole plan: other reservations decide as well."""


def list_waits(look: Look, planned: Plan) -> Iterator[tuple[str, Queued]]:
    for at, each in enumerate(planned.waiting, 1):
        yield each.reservation, Queued(each.code, each.detail, at, len(planned.waiting))


def find_conditions(look: Look) -> dict[str, tuple[Queued, dict[str, Condition]]]:
    """Return by waiting reservation what the plan reports, and its conditions by name."""
    view, rules, now = look
    planned = plan(*look)
    found = {}
    for name, queued in list_waits(look, planned):
        conditions = examine(view, rules, view.reservations[name], now, planned, queued).conditions
        assert [each.name for each in conditions] == [*CODE_OF]
        found[name] = (queued, {each.name: each for each in conditions})
    return found


def check_agreement(queued: Queued, conditions: dict[str, Condition]) -> None:
    """The condition that the code names is not met, and no earlier one is."""
    named = [name for name, code in CODE_OF.items() if code == queued.code and conditions[name].met is False]
    assert named, (queued, conditions)
    assert all(each.evidence for each in conditions.values())
    for name, code in CODE_OF.items():
        if code is None or name in named or WAITING_CODES.index(code) > WAITING_CODES.index(queued.code):
            continue
        is_replaced = (code, queued.code) == ("at_max_slots", "cordoned")
        assert is_replaced or conditions[name].met is not False, (name, queued, conditions)


@pytest.mark.parametrize("first", range(0, LOOKED_AT, 40))
def test_the_condition_that_a_code_names_is_not_met_and_the_earlier_ones_are(first: int) -> None:
    codes = Counter[str]()
    for number in range(first, first + 40):
        for queued, conditions in find_conditions(look_at(a_fleet(Random(number)))).values():
            check_agreement(queued, conditions)
            codes[queued.code] += 1
    assert len(codes) > 6


def test_the_rules_of_the_planner_alone_find_what_the_code_names() -> None:
    """Before the waiting code decides anything: the matrix has no opinion of its own that the code corrects."""
    compared = Counter[str]()
    for number in range(LOOKED_AT):
        view, rules, now = look = look_at(a_fleet(Random(number)))
        planned = plan(*look)
        for name, queued in list_waits(look, planned):
            findings = Findings(*replay(view, rules, now, planned), view.reservations[name], queued)
            if queued.code not in OF_THE_PLAN:
                named = [findings.find(each)[0] for each, code in CODE_OF.items() if code == queued.code]
                assert False in named, (number, name, queued)
                compared[queued.code] += 1
            for each, code in CODE_OF.items():
                if code and WAITING_CODES.index(code) < WAITING_CODES.index(queued.code):
                    is_replaced = (code, queued.code) == ("at_max_slots", "cordoned")
                    assert is_replaced or findings.find(each)[0] is not False, (number, name, queued, each)
    assert len(compared) > 6


@pytest.mark.parametrize("name", CASES)
def test_a_wait_for_an_account_agrees_too(name: str) -> None:
    search = search_among(CASES[name][0])
    queued, conditions = find_conditions((search.view, search.rules, search.now))["r1"]
    check_agreement(queued, conditions)
    assert conditions["account_balance" if queued.code == "no_quota" else "account_limits"].met is False


def look(rows: list[Row], rules: dict[str, Any]) -> Look:
    return View(rows), some_rules(rules), NOW


HOSTS: Final[dict[str, Any]] = {"provider": "static", "max_slots": None, "resources": {"cpus": 4}}
LABELLED: Final[Row] = a_slot(labels={"disk": "ssd"}, resources={"cpus": 4})


def wait_on(*slots: Row, **fields: Any) -> Condition:
    """Return the first condition that is not met for a reservation beside these rows."""
    rows = [a_reservation("r1", sequence=1, **fields), *slots]
    _, conditions = find_conditions(look(rows, {"pools": {"linux": HOSTS}}))["r1"]
    return next(each for each in conditions.values() if each.met is False)


def test_missing_labels_and_missing_size_are_distinguished() -> None:
    fields = {"resources": {"cpus": 2}}
    found = wait_on(LABELLED, labels={"disk": "hdd"}, **fields)
    assert (found.name, found.evidence) == ("labels", "no slot or offering has disk=hdd")
    found = wait_on(LABELLED, labels={"disk": "ssd"}, resources={"cpus": 8})
    assert (found.name, found.evidence) == ("size", "main asks 8 cpus; the largest has 4")


def test_the_evidence_names_the_largest_free_amounts() -> None:
    lease = a_lease("linux-1", resources={"cpus": 3})
    holder = a_reservation("old", sequence=0, phase="leased", leases=(lease,))
    found = wait_on(LABELLED, holder, resources={"cpus": 2})
    assert found.name == "free_capacity"
    assert found.evidence.endswith("main asks 2 cpus; the ready slot with most free has 1")


def on_hosts(free: list[float], **fields: Any) -> str:
    """The evidence of `free_capacity` for a gang, on hosts of 4 cpus and 8 of memory with this many cpus free."""
    hosts = {"linux": HOSTS | {"resources": {"cpus": 4, "memory_mib": 8}}}
    rows: list[Row] = [a_reservation("r1", sequence=9, **fields)]
    for number, cpus in enumerate(free, 1):
        lease = a_lease(f"linux-{number}", resources={"cpus": 4 - cpus})
        rows += [a_slot(f"linux-{number}"), a_reservation(f"h{number}", phase="leased", leases=(lease,))]
    _, conditions = find_conditions(look(rows, {"pools": hosts}))["r1"]
    assert conditions["free_capacity"].met is False
    return conditions["free_capacity"].evidence


def test_the_evidence_for_a_gang_names_how_many_of_its_instances_have_room() -> None:
    three = a_component("node", count=3, resources={"cpus": 4})
    assert on_hosts([4, 0], components=(three,)) == "3 instances of node ask 4 cpus each; there is room for 1"
    found = on_hosts([2, 1], components=(three,))
    assert found == "3 instances of node ask 4 cpus each; the ready slot with most free has 2"
    halves = (a_component("a", count=2, resources={"cpus": 2}), a_component("b", resources={"cpus": 1}))
    assert on_hosts([4, 0], components=halves) == "each of its components has room, but not all of them together"
    assert on_hosts([2, 0], components=halves) == "2 instances of a ask 2 cpus each; there is room for 1"


def test_amounts_that_no_slot_has_together_are_named() -> None:
    lease = a_lease("linux-2", resources={"memory_mib": 8})
    rows: list[Row] = [
        a_slot("linux-2"),
        a_reservation("h", phase="leased", leases=(lease,)),
        a_slot("linux-1"),
        a_reservation("g", phase="leased", leases=(a_lease("linux-1", resources={"cpus": 4}),)),
        a_reservation("r1", sequence=9, resources={"cpus": 4, "memory_mib": 8}),
    ]
    hosts = {"linux": HOSTS | {"resources": {"cpus": 4, "memory_mib": 8}}}
    _, conditions = find_conditions(look(rows, {"pools": hosts}))["r1"]
    assert conditions["free_capacity"].evidence == "main asks 4 cpus, 8 memory_mib; no slot has all of it together"


def test_what_the_queue_ahead_takes_in_this_tick_is_not_free() -> None:
    rows: list[Row] = [
        LABELLED,
        *(a_reservation(name, sequence=at, resources={"cpus": 3}) for at, name in enumerate(("a", "b"))),
    ]
    _, conditions = find_conditions(look(rows, {"pools": {"linux": HOSTS}}))["b"]
    assert conditions["free_capacity"].evidence.endswith("the ready slot with most free has 1")


def test_what_the_tick_takes_back_for_the_queue_ahead_is_free() -> None:
    parts = (a_component(resources={"cpus": 1}), a_component("more", kind="elastic", count=1, resources={"cpus": 3}))
    leases = tuple(a_lease("linux-1", component=each.name, kind=each.kind, resources=each.resources) for each in parts)
    rows: list[Row] = [
        LABELLED,
        a_reservation("r0", components=parts, phase="leased", leased_at=NOW - 9, confirmed_at=NOW - 9, leases=leases),
        *(a_reservation(name, sequence=at, resources={"cpus": 2}) for at, name in enumerate(("a", "b"), 1)),
    ]
    rules = {"pools": {"linux": HOSTS}, "scheduler": {"preemption_grace": 0}}
    _, conditions = find_conditions(look(rows, rules))["b"]
    assert conditions["free_capacity"].evidence.endswith("the ready slot with most free has 1")


@pytest.mark.parametrize("resumes_as", ["big", "huge"])
def test_a_stopped_slot_that_the_tick_starts_is_in_flight_and_counts_for_budgets(resumes_as: str) -> None:
    offerings = [
        {"name": name, "market": "on-demand", "price": price, "resources": {"cpus": 4}}
        for name, price in (("big", 1), ("huge", 1.25))
    ]
    pool = a_pool(max_slots=1, stopped_slots=1, resize_stopped=True, offerings=offerings)
    tier = a_slot("linux-1", state="stopped", offering="big", market="on-demand", price=1.0, resources={"cpus": 4})
    rows: list[Row] = [tier, a_reservation("r1")]
    if resumes_as == "huge":
        identity = hold_id("linux", "capacity", "big")
        rows.append(Hold(id=identity, pool="linux", subject="big", kind="capacity", until=NOW + 60, refused_at=NOW - 1))
    rules = {"pools": {"linux": pool}, "budgets": {"b": {"per_hour": 2, "action": "stop"}}}
    queued, conditions = find_conditions(look(rows, rules))["r1"]
    assert queued.code == "booting"
    assert conditions["slots_started"].evidence.endswith(": 0 ready, 1 in flight")
    assert f", {1.25 if resumes_as == 'huge' else 1:.2f} run" in conditions["budget"].evidence


def test_a_declined_slot_with_room_is_named() -> None:
    slot = a_slot(resources={"cpus": 4}, since=NOW - 9, uses=1)
    found = find_conditions(look([slot, a_reservation("r1", declined=("linux-1",))], {"pools": {"linux": HOSTS}}))
    assert found["r1"][1]["not_declined"] == Condition("not_declined", False, "declined slots: linux-1; with room: 1")


def test_a_reservation_that_the_next_tick_serves_has_no_condition_that_is_not_met() -> None:
    view, rules, now = look([LABELLED, a_reservation("r1")], {"pools": {"linux": HOSTS}})
    planned = plan(view, rules, now)
    assert not len(planned.waiting)
    found = examine(view, rules, view.reservations["r1"], now, planned, Queued()).conditions
    assert [each.name for each in found if each.met is False] == []


def test_evidence_names_few_slots_of_many() -> None:
    slots = [a_slot(f"linux-{number}", cordoned=True, resources={"cpus": 4}) for number in range(1, 40)]
    found = wait_on(*slots, resources={"cpus": 2})
    assert found.name == "not_cordoned"
    assert found.evidence.endswith("linux-1, linux-2, linux-3, linux-4, linux-5 and 34 more")


def test_the_guard_the_budget_and_the_queue_are_distinguished() -> None:
    pools = {"linux": a_pool(provider="static", resources={"cpus": 4})}
    del pools["linux"]["max_slots"]
    hosts = [{"id": f"linux-{number}", "pool": "linux"} for number in (1, 2)]
    large = a_wish("big", components=[{"name": "node", "count": 2, "resources": {"cpus": 4}}])
    small = [a_wish(f"s{number}", resources={"cpus": 1}) for number in range(3)]
    busy = a_wish("busy", resources={"cpus": 2})
    for scheduler, name in (({"starvation_guard": 5}, "starvation_guard"), ({"backfill": False}, "turn")):
        timeline = [
            *({"at": 0, "submit": [busy]}, tick(0), {"at": 1, "submit": [large]}, tick(1)),
            *({"at": 20, "submit": small}, tick(20)),
        ]
        fleet = a_scenario(*timeline, pools=pools, scheduler=scheduler, slots=hosts)
        fleet["timeline"] = fleet["timeline"][:-1]
        found = find_conditions(look_at(fleet))
        queued, conditions = found["s0"]
        assert queued.code == "behind_queue"
        assert next(each.name for each in conditions.values() if each.met is False) == name
        check_agreement(queued, conditions)


def test_an_account_without_limits_and_one_without_accounts_do_not_apply() -> None:
    account = Account(id="ci", version=1, charged_at=NOW)
    rows: list[Row] = [account, a_reservation("r1", account="ci", sequence=1, resources={"cpus": 9}), LABELLED]
    _, conditions = find_conditions(look(rows, {"pools": {"linux": HOSTS}}))["r1"]
    assert conditions["account_balance"] == Condition("account_balance", None, "its queue uses no accounts")
    assert conditions["account_limits"] == Condition("account_limits", None, "no account limits its leases")


def test_a_condition_without_a_function_is_what_the_plan_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a new waiting code needs no function in the matrix."""
    monkeypatch.setattr(matrix, "CODE_OF", {**CODE_OF, "of_a_new_rule": "capacity"})
    view, rules, now = look([a_reservation()], {"pools": {"linux": {"max_slots": 0}}})
    cycle, limits = replay(view, rules, now, plan(view, rules, now))
    row = view.reservations["r1"]

    def find(code: WaitingCode) -> bool | None:
        return Findings(cycle, limits, row, Queued(code)).find("of_a_new_rule")[0]

    assert (find("at_max_slots"), find("capacity"), find("no_capacity")) == (None, None, True)
