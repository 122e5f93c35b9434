"""Costs, budgets and offers over HTTP, as the commands read them from the database."""

import pytest

from scheduler.ports import StoredPrincipal
from scheduler.protocol.signing import make_key
from tests.api.caller import Caller
from tests.api.test_openapi import check
from tests.console.served import Console
from tests.console.test_gate import basic
from tests.console.test_money_pages import RULES, book_now, put_rules
from tests.store.test_costs import a_cost


@pytest.fixture
def filled(console: Console) -> Console:
    put_rules(console, RULES)
    book_now(console, a_cost(pool="linux", account="ci", dollars=2.0), a_cost(pool="mac", account="ci", dollars=5.0))
    return console


def test_costs_are_sums_by_each_way(filled: Console, api: Caller) -> None:
    found = api.get("/costs").content
    assert check("Costs", found)
    assert [(each["name"], each["dollars"]) for each in found["costs"]] == [("mac", 5.0), ("linux", 2.0)]
    assert (found["by"], found["total"]["dollars"]) == ("pool", 7.0)
    by_account = api.get("/costs?by=account&hours=1").content
    assert [(each["name"], each["dollars"]) for each in by_account["costs"]] == [("ci", 7.0)]


def test_budgets_have_limits_and_what_was_spent(filled: Console, api: Caller) -> None:
    found = api.get("/budgets").content
    assert found["next"] is None
    whole, nightly = found["items"]
    assert check("Budget", whole)
    assert check("Budget", nightly)
    assert (whole["budget"], whole["per_day"], whole["day"], whole["exceeded"]) == ("all", 10.0, 7.0, [])
    # Of the day 3 dollars are left, of an hour one.
    assert (whole["allowed"], nightly["allowed"]) == (1.0, None)
    assert (nightly["pools"], nightly["accounts"]) == (["linux"], ["nightly"])


def test_offers_are_those_of_the_command(filled: Console, api: Caller) -> None:
    found = api.get("/offers").content["items"]
    assert all(check("Offer", each) for each in found)
    assert [(each["pool"], each["key"]) for each in found][:2] == [("linux", "c5.large"), ("linux", "m5.large")]
    assert {each["pool"] for each in api.get("/offers?pool=arm").content["items"]} == {"arm"}


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/costs?by=day", "one of pool, account, offering, kind"),
        ("/costs?by=pool&by=kind", "one value"),
        ("/costs?hours=-1", "a whole number from 0 to"),
        ("/costs?hours=x", "a whole number from 0 to"),
        ("/budgets?limit=5", "a known parameter"),
        ("/offers?pools=a", "a known parameter"),
    ],
)
def test_a_wrong_query_is_a_fault(path: str, fault: str, api: Caller) -> None:
    reply = api.get(path)
    assert reply.status == 400
    assert reply.faults[0][1].startswith(fault)


def test_a_host_may_not_read_prices(console: Console) -> None:
    key = make_key()
    console.add(StoredPrincipal(name="h", role="host", key=key, created_at=0.0))
    host = Caller(console.settings.console.port, {"Authorization": basic("h", key)})
    for path in ("/costs", "/budgets", "/offers"):
        assert host.get(path).status == 403, path
