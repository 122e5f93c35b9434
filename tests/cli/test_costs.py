"""`leasehold costs`: what machines cost, and what was spent of budgets."""

import csv
import json
from collections.abc import Iterator
from contextlib import closing
from io import StringIO

import pytest

from scheduler.model.costs import Cost, begin_of_hour
from scheduler.model.slots import Meter
from scheduler.ports import Store
from scheduler.store.opening import open_store
from tests.builders import a_slot
from tests.cli.conftest import Run


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with closing(open_store(database)) as opened:
        yield opened


def book(store: Store) -> float:
    """Book an hour of three kinds of machines two hours ago, and one much earlier; return the hour."""
    hour = begin_of_hour(store.now()) - 7200
    with store.transaction() as transaction:
        transaction.book(
            [
                Cost(hour, "linux", "small", "ci", "used", 3600.0, 2.5),
                Cost(hour, "linux", "large", "lab", "idle", 1800.0, 4.0),
                Cost(hour, "hosts", "", "", "used", 3600.0, 0.0, unpriced=3600.0),
                Cost(hour - 40 * 86_400, "linux", "small", "ci", "used", 3600.0, 100.0),
            ]
        )
    return hour


def test_costs_are_summed_by_pool_account_offering_and_kind(store: Store, run: Run) -> None:
    book(store)
    names = {}
    for way in ("pool", "account", "offering", "kind"):
        found = json.loads(run("costs", "--by", way, "--json").out)
        names[way] = [(each["name"], each["dollars"]) for each in found["costs"]]
        assert (found["total"]["dollars"], found["total"]["seconds"]) == (6.5, 9000.0)
    assert names == {
        "pool": [("linux", 6.5), ("hosts", 0.0)],
        "account": [("lab", 4.0), ("ci", 2.5), ("", 0.0)],
        "offering": [("linux/large", 4.0), ("linux/small", 2.5), ("hosts/", 0.0)],
        "kind": [("idle", 4.0), ("used", 2.5)],
    }


def test_a_begin_is_a_duration_or_a_time(store: Store, run: Run) -> None:
    hour = book(store)
    assert json.loads(run("costs", "--since", "60d", "--json").out)["total"]["dollars"] == 106.5
    assert json.loads(run("costs", "--since", "1h", "--json").out)["costs"] == []
    assert json.loads(run("costs", "--since", str(hour + 60), "--json").out)["since"] == hour
    assert json.loads(run("costs", "--since", "9999999d", "--json").out)["since"] == 0
    for text in ("soon", "nan", "inf", "-1", "1e300", str(1000 * hour)):
        answer = run("costs", f"--since={text}")
        assert answer.status == 2
        assert "--since: expected " in answer.err


def test_the_table_shows_times_and_machines_without_a_price(store: Store, run: Run) -> None:
    book(store)
    lines = run("costs").out.splitlines()
    assert lines[2].split() == ["linux", "6.50", "1.0", "h", "30", "min"]
    assert lines[3].split() == ["hosts", "0.00", "1.0", "h", "1.0", "h"]
    assert lines[4].split()[:2] == ["total", "6.50"]


def test_machines_without_a_slot_are_shown_if_there_are_any(store: Store, run: Run) -> None:
    hour = book(store)
    assert "UNBOUND" not in run("costs").out.splitlines()[0].upper()
    with store.transaction() as transaction:
        transaction.book([Cost(hour, "linux", "small", "ci", "unbound", 600.0, 0.5)])
    lines = run("costs").out.splitlines()
    assert "UNBOUND" in lines[0].upper()
    assert lines[2].split() == ["linux", "7.00", "1.0", "h", "30", "min", "10", "min"]
    [linux, _] = csv.DictReader(StringIO(run("costs", "-o", "csv").out))
    assert (float(linux["unbound_seconds"]), float(linux["unbound_dollars"])) == (600.0, 0.5)
    found = json.loads(run("costs", "--by", "kind", "--json").out)
    assert ("unbound", 0.5) in [(each["name"], each["dollars"]) for each in found["costs"]]


def test_a_machine_that_runs_counts_until_now(store: Store, run: Run) -> None:
    with store.transaction() as transaction:
        transaction.save([a_slot(meter=Meter(store.now() - 5400, "used", "small", "ci", price=2.0))])
    [row] = csv.DictReader(StringIO(run("costs", "--by", "account", "-o", "csv").out))
    assert row["account"] == "ci"
    assert float(row["used_dollars"]) == pytest.approx(3.0, abs=0.1)


def test_without_costs_a_sentence_is_printed(store: Store, run: Run) -> None:
    assert run("costs").out.startswith("no machine has run since ")
    assert run("costs", "--budgets").out == "no budgets: `leasehold rules set budgets.all.per_day=40` makes one\n"


def test_budgets_show_what_was_spent_and_what_is_exceeded(store: Store, run: Run) -> None:
    budgets = {"all": {"per_hour": 1, "per_month": 500, "action": "warn"}, "lab": {"accounts": ["lab"], "per_day": 99}}
    with store.transaction() as transaction:
        transaction.save_rules({"budgets": budgets}, 0)
        transaction.save([a_slot(price=2.0, meter=Meter(transaction.now() - 60, "used", "", "ci", price=2.0))])
    found = {each["budget"]: each for each in json.loads(run("costs", "--budgets", "--json").out)}
    assert (found["all"]["running"], found["all"]["exceeded"]) == (2.0, ["per_hour"])
    assert (found["lab"]["running"], found["lab"]["day"], found["lab"]["exceeded"]) == (0.0, 0.0, [])
    assert "2.00 of 1.00" in run("costs", "--budgets").out
    # What was spent is shown without a limit, too.
    assert found["all"]["day"] > 0
    assert found["all"]["month"] >= found["all"]["day"]


def test_spent_amounts_are_shown_of_a_budget_without_a_limit_for_them(store: Store, run: Run) -> None:
    with store.transaction() as transaction:
        transaction.save_rules({"budgets": {"all": {"per_hour": 9}}}, 0)
        transaction.book([Cost(begin_of_hour(transaction.now()), "linux", "small", "ci", "used", 600.0, 0.5)])
    [found] = json.loads(run("costs", "--budgets", "--json").out)
    assert (found["day"], found["month"]) == (0.5, 0.5)


def test_a_use_that_no_machine_had_has_no_column(store: Store, run: Run) -> None:
    with store.transaction() as transaction:
        transaction.book([Cost(begin_of_hour(transaction.now()), "linux", "small", "ci", "used", 600.0, 0.5)])
    assert run("costs").out.split()[:3] == ["pool", "dollars", "used"]
    assert {"booting", "idle", "interrupted"} <= set(run("costs", "-o", "wide").out.split())
