"""Waits that an account causes or ends: its balance, when it can pay again, and the smallest change."""

import json
from typing import Any

import pytest

from scheduler.explain.changes import KINDS_OF_CHANGE, grant_balance, list_freed_work
from scheduler.explain.conditions import describe_account, forecast, list_recoveries
from scheduler.explain.search import Kind, Search, describe_change, suggest_change
from scheduler.model.accounts import Account
from scheduler.model.reservations import Reservation
from scheduler.model.view import Row, View
from scheduler.operations.explain import explain_wait
from tests.builders import NOW, a_lease, a_reservation, a_slot, some_rules
from tests.rules.playing import Document, a_pool, a_scenario, a_wish, tick
from tests.rules.waits import is_served_after, look_at

RATES = (2.0, 0.5, 0.0, 0.0, 0.0)


def ci(*balance: float, **fields: Any) -> Account:
    """An account that was charged just now."""
    padded = (*balance, *[0.0] * (5 - len(balance)))
    return Account(id="ci", version=1, charged_at=NOW, balance=padded, **fields)  # type: ignore[arg-type]


def runs(name: str, slot: str, *, level: int, account: str | None = "ci", **lease: Any) -> Reservation:
    fields: dict[str, Any] = {"level": level, "charged_at": NOW, **lease}
    return a_reservation(name, account=account, sequence=1, phase="leased", leases=(a_lease(slot, **fields),))


def waits(name: str = "r1", **fields: Any) -> Reservation:
    return a_reservation(name, sequence=9, account="ci", **fields)


FORECASTS: dict[str, tuple[Account, list[Row], str]] = {
    "has some left at a worse level": (
        ci(-70, 0.4, charge_rate=RATES, max_charge_seconds=60),
        [],
        "account ci has 0.4 of level 1 left; it can pay again at level 0 in 36 s",
    ),
    "leases at that level slow the recovery down": (
        ci(-35, 0.4, charge_rate=RATES, max_charge_seconds=60),
        [runs("r2", "linux-1", level=0)],
        "account ci has 0.4 of level 1 left; it can pay again at level 0 in 36 s",
    ),
    "its balance is used up": (
        ci(30, charge_rate=RATES, max_charge_seconds=60),
        [runs(f"r{number}", f"linux-{number}", level=0) for number in (2, 3, 4)],
        "account ci has 30 of level 0 left; its running work uses this up in 30 s",
    ),
    "a large amount has separators": (ci(1724.88), [], "account ci has 1,724.88 of level 0 left"),
    "a share of a slot counts as a share": (
        ci(-35, charge_rate=(1.0, 0.0, 0.0, 0.0, 0.0), max_charge_seconds=60),
        [runs("r2", "linux-1", level=0, weight=0.5)],
        "account ci has nothing left at any level; it can pay again at level 0 in 71 s",
    ),
    "as much runs as it earns": (
        ci(-1, charge_rate=(1.0, 0.0, 0.0, 0.0, 0.0), max_charge_seconds=60),
        [runs("r2", "linux-1", level=0)],
        "account ci has nothing left at any level; its running work costs as much as it earns",
    ),
    "nothing is earned": (ci(), [], "account ci has nothing left at any level; it earns nothing"),
    "debts alone recharge": (
        ci(-1, charge_rate=RATES),
        [],
        "account ci has nothing left at any level; it earns only below a balance of 0 (max_charge_seconds = 0)",
    ),
    "two levels recover": (
        ci(-10, -1, charge_rate=RATES, max_charge_seconds=60),
        [],
        "account ci has nothing left at any level; it can pay again at level 1 in 3 s and at level 0 in 6 s",
    ),
    "charged some time ago": (
        Account(id="ci", charged_at=NOW - 10, charge_rate=RATES, max_charge_seconds=3, due=(0.5, 0, 0, 0, 0)),
        [],
        "account ci has 6 of level 0 left",
    ),
    "leases of other accounts do not count": (
        ci(-2, charge_rate=(1.0, 0.0, 0.0, 0.0, 0.0), max_charge_seconds=60),
        [runs("r2", "linux-1", level=0, account="lab"), runs("r3", "linux-2", level=5)],
        "account ci has nothing left at any level; it can pay again at level 0 in 3 s",
    ),
}


@pytest.mark.parametrize("name", FORECASTS)
def test_an_account_is_reported_with_its_balance_and_when_it_can_pay_again(name: str) -> None:
    account, rows, text = FORECASTS[name]
    assert describe_account(forecast(View([account, *rows]), account, NOW)) == text


@pytest.mark.parametrize("name", FORECASTS)
def test_it_can_pay_again_at_exactly_that_time(name: str) -> None:
    account, rows, _ = FORECASTS[name]
    view = View([account, *rows])
    for seconds, level in list_recoveries(forecast(view, account, NOW)):
        assert forecast(view, account, NOW + seconds).account.balance[level] > 0
        assert forecast(view, account, NOW + seconds - 0.002).account.balance[level] <= 0


FULL = [runs("old", "linux-1", level=4, account=None, cost=(0.0, 2.5, 0.0, 0.0, 0.0))]
CASES: dict[str, tuple[list[Row], str, dict[str, Any]]] = {
    # the rows, the text, the only action
    "nothing left, and nothing is earned": (
        [waits(), a_slot(), ci(disable_free_tasks=True)],
        "a balance of ci above 0 at level 4 would do",
        {"account": {"id": "ci", "balance": [0.0, 0.0, 0.0, 0.0, 0.001]}},
    ),
    "nothing left at the level at which it earns, and nothing that is kept": (
        [waits(), a_slot(), ci(charge_rate=(1.0, 0.0, 0.0, 0.0, 0.0), disable_free_tasks=True)],
        "a balance of ci above 0 at level 0 would do",
        {"account": {"id": "ci", "balance": [0.001, 0.0, 0.0, 0.0, 0.0]}},
    ),
    "nothing left, for some seconds": (
        [waits(), a_slot(), ci(-4, -1.2, disable_free_tasks=True, charge_rate=RATES, max_charge_seconds=60)],
        "account ci can pay again at level 0 in 3 s",
        {},
    ),
    "max_fanout": (
        [
            waits(),
            a_slot(),
            ci(9, max_fanout=1, disable_free_tasks=True),
            *(a_slot("linux-2"), runs("r2", "linux-2", level=0)),
        ],
        "a max_fanout of 2 instead of 1 for ci would do",
        {"account": {"id": "ci", "max_fanout": 2}},
    ),
    "a limit by label": (
        [
            waits(),
            a_slot(labels={"image": "web"}),
            ci(9, per_label_task_limits={"image": 1}),
            *(a_slot("linux-2", labels={"image": "web"}), runs("r2", "linux-2", level=0)),
        ],
        "a per_label_task_limits of 2 instead of 1 for image of ci would do",
        {"account": {"id": "ci", "per_label_task_limits": {"image": 2}}},
    ),
}


def search_among(rows: list[Row]) -> Search:
    view = View(rows)
    pool = {"provider": "static", "max_leases_per_slot": 1, "max_slots": None}
    rules = some_rules({"scheduler": {"queue": "quota"}, "pools": {"linux": pool}})
    return Search(view, rules, view.reservations["r1"], NOW)


@pytest.mark.parametrize("name", CASES)
def test_the_smallest_change_is_reported(name: str) -> None:
    rows, text, action = CASES[name]
    search = search_among(rows)
    found = suggest_change(search, KINDS_OF_CHANGE)
    assert found is not None
    assert search.serves(found)
    described = describe_change(search.view, found)
    undo = described.pop("undo")
    assert described == {
        "kind": found.kind,
        "text": text,
        "wait_seconds": found.wait_seconds,
        "actions": [action] if action else [],
    }
    assert [each["account"].keys() for each in undo] == ([action["account"].keys()] if action else [])
    assert (found.wait_seconds > 0) is (not action)


def test_under_another_queue_accounts_are_no_reason() -> None:
    rows, *_ = CASES["nothing left, and nothing is earned"]
    search = search_among(rows)
    rules = some_rules({"pools": {"linux": {"provider": "static", "max_slots": None}}})
    stated = explain_wait(search.view, rules, search.reservation, NOW)
    assert (stated["served"], stated["account"], stated["change"]) == (True, None, None)


def test_a_wait_is_explained_with_its_account() -> None:
    rows, text, _ = CASES["nothing left, for some seconds"]
    search = search_among(rows)
    stated = explain_wait(search.view, search.rules, search.reservation, NOW)
    assert stated["waiting"]["code"] == "no_quota"
    reported = "account ci has nothing left at any level; it can pay again at level 0 in 3 s and at level 1 in 3 s"
    assert stated["account"] == reported
    assert stated["change"]["text"] == text


ASKED_ALONE: dict[str, tuple[list[Row], Kind, str, dict[str, Any]]] = {
    "work that an account with more than its cost could preempt": (
        [waits(), a_slot(), *FULL, ci(charge_rate=(0.0, 1.0, 0.0, 0.0, 0.0))],
        grant_balance,
        "a balance of ci of 3 at level 1 would do",
        {"account": {"id": "ci", "balance": [0.0, 3.0, 0.0, 0.0, 0.0]}},
    ),
    "nothing at a level worse than those at which its victim has used something suffices": (
        [waits(), a_slot(), *FULL, ci()],
        grant_balance,
        "a balance of ci of 3 at level 1 would do",
        {"account": {"id": "ci", "balance": [0.0, 3.0, 0.0, 0.0, 0.0]}},
    ),
    "free work": (
        [waits(), a_slot(), ci(disable_free_tasks=True)],
        lambda search: search.find_first(list_freed_work(search)),
        "it would run at the free level if ci had no disable_free_tasks",
        {"account": {"id": "ci", "disable_free_tasks": False}},
    ),
}


@pytest.mark.parametrize("name", ASKED_ALONE)
def test_kinds_of_change_that_are_rarely_found_are_right_too(name: str) -> None:
    rows, kind, text, action = ASKED_ALONE[name]
    search = search_among(rows)
    found = kind(search)
    assert found is not None
    assert search.serves(found)
    assert (found.text, describe_change(search.view, found)["actions"]) == (text, [action])


def test_a_reservation_with_a_claim_waits_for_the_end_of_the_grace_period() -> None:
    claim = a_lease("linux-1", state="claimed", level=0, token=0, charged_at=NOW)
    gone = a_lease("linux-1", state="revoking", revoke_by=NOW + 30)
    old = a_reservation("old", phase="revoking", revoke_by=NOW + 30, revoke_reason="preempted", leases=(gone,))
    search = search_among([waits(leases=(claim,)), old, a_slot(), ci(9)])
    found = suggest_change(search, KINDS_OF_CHANGE)
    assert found is not None
    assert (found.text, found.wait_seconds) == (
        "the reservations that it preempted have to give linux-1 back in 30 s",
        30,
    )


SLOTS = [{"id": f"hosts-{number}", "pool": "hosts", "labels": {"image": "web"}} for number in (1, 2)]
EARNS = {"charge_rate": [1.0], "max_charge_seconds": 60}
PLAYED: dict[str, tuple[Document, list[Document], str]] = {
    # the account, earlier reservations of it, the kind of change that is found
    "time": ({**EARNS, "balance": [-20], "disable_free_tasks": True}, [], "wait"),
    "a balance": ({"balance": [-20], "disable_free_tasks": True}, [], "balance"),
    "max_fanout": (
        {"balance": [90], "max_fanout": 1, "disable_free_tasks": True},
        [{"account": "ci"}],
        "account_limit",
    ),
    "a limit by label": (
        {"balance": [90], "per_label_task_limits": {"image": 1}},
        [{"account": "ci"}],
        "account_limit",
    ),
}


@pytest.mark.parametrize("name", PLAYED)
def test_the_printed_change_ends_the_wait_when_it_is_played(name: str) -> None:
    account, others, kind = PLAYED[name]
    wishes = [*(a_wish(f"r{number}", **fields) for number, fields in enumerate(others, 2)), a_wish("r1", account="ci")]
    fleet = a_scenario(
        *({"at": 0, "submit": wish} for wish in wishes),
        *(tick(0), tick(3)),
        pools={"hosts": a_pool(provider="static", max_slots=None, max_leases_per_slot=1)},
        scheduler={"queue": "quota"},
        slots=SLOTS,
    )
    fleet["config"]["accounts"] = {"ci": account}
    del fleet["config"]["pools"]["hosts"]["max_slots"]
    view, rules, now = look_at(fleet)
    found = suggest_change(Search(view, rules, view.reservations["r1"], now), KINDS_OF_CHANGE)
    assert found is not None
    assert found.kind == kind
    change = json.loads(json.dumps(describe_change(view, found)))
    assert is_served_after(fleet, change, "r1")
    less = {**change, "actions": [], "wait_seconds": change["wait_seconds"] * 0.99}
    assert not is_served_after(fleet, less, "r1")
