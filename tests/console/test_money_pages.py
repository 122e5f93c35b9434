"""The pages Money and Offers, and the lives of machines on the page Fleet, without a worker."""

import re
from html import unescape
from typing import Any, Final

import msgspec
import pytest

from leasehold.console.pages.fleet import SlotLife, describe_life
from leasehold.console.pages.money import make_curve
from leasehold.console.pages.offers import make_curve as draw_prices
from scheduler.model.costs import HOUR, Cost, begin_of_hour
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.rules import Rules, read_rules
from scheduler.model.slots import Slot
from scheduler.operations.market import save_market
from scheduler.operations.rules.offers import Offer
from scheduler.ports import StoredPrincipal
from scheduler.protocol.signing import make_key
from tests.builders import NOW, a_slot
from tests.console.conftest import MakeConsole
from tests.console.served import Console
from tests.console.test_gate import basic
from tests.console.test_security import HOSTILE
from tests.store.test_costs import a_cost, book
from tests.store.test_market import a_change, a_price, a_type

RULES: Final[dict[str, Any]] = {
    "pools": {
        "linux": {
            "system": "x86_64-linux",
            "max_slots": 1,
            "ec2": {"image": "ami-2"},
            "market": {"prices": True},
            "price_factor": 2,
            "offerings": [{"name": "m5.large"}, {"name": "c5.large", "price": 0.1}, {"name": "x1.large"}],
            "replacement": {"drift": "replace", "max_age": 3600, "max_age_jitter": 0},
        },
        "arm": {"system": "aarch64-linux", "max_slots": 1, "ec2": {"image": "ami-3"}},
        "hosts": {"system": "x86_64-linux", "provider": "static"},
    },
    "budgets": {
        "all": {"per_hour": 1, "per_day": 10, "action": "drain"},
        "nightly": {"per_month": 5, "accounts": ["nightly"], "pools": ["linux"], "action": "warn"},
    },
}


def put_rules(console: Console, document: dict[str, Any]) -> None:
    with console.store.transaction() as transaction:
        transaction.save_rules(document, transaction.rules_version())


def book_now(console: Console, *costs: Cost) -> None:
    hour = begin_of_hour(console.store.now())
    book(console.store, *(msgspec.structs.replace(each, hour=hour) for each in costs))


def plain(text: str) -> str:
    """Return the text of a page without its markup and with single blanks."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/money", "No machine has run in this span"),
        ("/money", "leasehold reserve --system x86_64-linux --cpus 2 --wait 60"),
        ("/money", "leasehold rules set budgets.all.per_day=40"),
        ("/offers", "leasehold config init --minimal leasehold apply leasehold.toml"),
        ("/doctor", "leasehold doctor"),
        ("/accounts", "leasehold accounts set ci --charge-rate 0,1"),
        ("/events", "leasehold reserve --system x86_64-linux --cpus 2 --wait 60"),
    ],
)
def test_an_empty_page_teaches_its_first_command(path: str, text: str, console: Console) -> None:
    answer = console.entered().get(path)
    assert answer.status == 200
    assert text in plain(answer.text)


def test_money_has_the_sums_of_the_ledger_by_each_way(console: Console) -> None:
    book_now(
        console,
        a_cost(pool="linux", account="ci", dollars=2.0, kind="used"),
        a_cost(pool="linux", account="", dollars=0.5, kind="idle", seconds=7200.0, unpriced=3600.0),
        a_cost(pool="mac", account="nightly", dollars=40.0, kind="booting"),
        a_cost(pool="tier", account="", dollars=0.25, kind="stopped"),
        a_cost(pool="bill", account="", dollars=1.0, kind="adjusted", seconds=0.0),
    )
    browser = console.entered()
    by_pool = plain(browser.get("/money").text)
    assert "$43.75 since" in by_pool
    # What AWS bills beside the price of a time has no time.
    assert "bill $1.00 $1.00 0 s" in by_pool
    assert "$1.00 adjusted: what AWS bills more or less" in by_pool
    assert "tier $0.25 $0.25" in by_pool
    assert "Hour (UTC) Used Booting Idle Draining Interrupted Stopped Adjusted" in by_pool
    assert "mac $40.00 $40.00" in by_pool
    assert "linux $2.00 $0.50 $2.50 2 h 15 min 1 h 0 min" in by_pool
    assert "ci $2.00 $2.00" in plain(browser.get("/money?by=account").text)
    assert "no account $0.50 $0.25 $1.00 $1.75" in plain(browser.get("/money?by=account&span=7d").text)
    by_use = plain(browser.get("/money?by=kind&span=30d").text)
    assert by_use.index("booting $40.00") < by_use.index("used $2.00")
    # A wrong choice in the address is the usual one.
    assert "Costs by pool" in browser.get("/money?by=%3Cb%3E&span=x").text


def test_money_has_machines_without_a_slot_if_there_are_any(console: Console) -> None:
    book_now(console, a_cost(pool="linux", dollars=2.0, kind="used"))
    browser = console.entered()
    assert "Unbound" not in plain(browser.get("/money").text)
    book_now(console, a_cost(pool="linux", account="ci", dollars=0.25, kind="unbound"))
    text = plain(browser.get("/money").text)
    assert "$0.25 unbound" in text
    assert "Draining Interrupted Unbound Total" in text
    assert "linux $2.00 $0.25 $2.25" in text
    newest = text[text.index("Newest dollars per hour") :]
    assert "Draining Interrupted Unbound" in newest
    # The running hour is divided by its elapsed part.
    rows = re.findall(r"(\d+\.\d\d) 0\.00 0\.00 0\.00 0\.00 (\d+\.\d\d)", newest)
    assert any(float(used) >= 2.0 and float(unbound) >= 0.25 for used, unbound in rows)


def test_money_has_what_runs_now_and_the_budgets(make_console: MakeConsole) -> None:
    rows = (
        a_slot("linux-1", price=0.8, launched_for="nightly"),
        a_slot("linux-2", price=0.4),
        a_slot("linux-3"),
        a_slot("linux-4", state="empty", price=9.0),
        a_slot("linux-5", state="stopped", price=5.0, storage_price=0.1),
    )
    console = make_console(rows)
    put_rules(console, RULES)
    book_now(console, a_cost(dollars=4.0, account="nightly", pool="linux"), a_cost(dollars=2.0, account="ci"))
    text = plain(console.entered().get("/money").text)
    assert "$1.30 an hour now, 3 machines and 1 stopped one" in text
    assert "1 of the machines that run has no price" in text
    budgets = text[text.index("When it is exceeded") :]
    whole, nightly = budgets.split(" nightly ", 1)
    assert "all exceeded all pools" in whole
    assert "$1.20 of $1.00 an hour" in whole
    assert "$6.00 of $10.00" in whole
    # Four dollars of the day are left, but only one may run in an hour.
    assert "$1.00 drain stops launches that would exceed it; it also ends machines" in whole
    assert nightly.startswith("linux, launched for nightly")
    assert "$0.80 an hour" in nightly
    assert "$4.00 of $5.00 any warn stops nothing: it only warns" in nightly


def test_the_curve_has_each_hour_and_the_running_one_by_its_part() -> None:
    costs = [a_cost(hour=0.0, dollars=2.0), a_cost(hour=2 * HOUR, dollars=3.0, kind="idle")]
    found = make_curve(costs, 60.0, 2 * HOUR + HOUR / 2)
    values = {each["name"]: each["values"] for each in found["series"]}
    assert found["at"] == [0, 3600, 7200, 9000]
    assert (values["used"], values["idle"]) == ([2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 6.0, 6.0])


def test_the_curve_begins_with_the_first_machine_and_is_stacked() -> None:
    found = make_curve([a_cost(hour=5 * HOUR, dollars=2.0)], 60.0, 6 * HOUR + HOUR / 2)
    assert found["at"] == [5 * HOUR, 6 * HOUR, 6.5 * HOUR]
    assert found["stacked"] is True
    assert make_curve([], 60.0, 6 * HOUR + HOUR / 2)["at"] == [6 * HOUR, 6.5 * HOUR]


@pytest.fixture
def market(console: Console) -> Console:
    """Return a console on a cluster with prices, launch back-offs and a slot."""
    put_rules(console, RULES)
    now = console.store.now()
    save_market(
        console.store, types=[a_type("m5.large")], prices=[a_price("m5.large", price=0.05, seen_at=now - 7300.0)]
    )
    with console.store.transaction() as transaction:
        hold = Hold(
            id=hold_id("linux", "capacity", "c5.large"),
            pool="linux",
            kind="capacity",
            subject="c5.large",
            refused_at=now,
            until=now + 600.0,
            code="InsufficientInstanceCapacity",
            message="There is <no> capacity.",
        )
        transaction.save([hold])
    return console


def test_offers_are_in_the_order_of_choice_with_what_prevents_them(market: Console) -> None:
    browser = market.entered()
    text = browser.get("/offers").text
    assert re.findall(r"<h2>(\w+)</h2>", text) == ["linux", "arm"]
    rows = [plain(each) for each in re.findall(r"<tr><td.*?</tr>", text, re.DOTALL)]
    assert rows[0] == "1 m5.large spot eu-1a 0.0500 EC2's spot prices 2 h 1 min ago stale may be launched"
    assert rows[1].startswith("2 c5.large spot any 0.1000 set by hand in the rules launch back-off EC2 lacked capacity")
    assert "(EC2's answer: InsufficientInstanceCapacity: There is <no> capacity.)" in rows[1]
    assert rows[2] == "3 x1.large spot any no price no price is known"
    assert rows[3] == "1 the type of its template or image spot any no price may be launched"
    assert "Not for" not in text
    put_rules(market, {**RULES, "budgets": {"few": {"per_hour": 0.07, "accounts": ["ci", "web"]}}})
    text = browser.get("/offers").text
    assert text.count("Not for</th>") == 1
    rows = [plain(each) for each in re.findall(r"<tr><td.*?</tr>", text, re.DOTALL)]
    assert rows[0].endswith("may be launched")
    assert rows[1].endswith("ci, web (budget few stops it: it allows 0.07 dollars an hour at present, 0.00 run)")
    only = browser.get("/offers?pool=arm").text
    assert re.findall(r"<h2>(\w+)</h2>", only) == ["arm"]
    assert "No pool hosts launches machines" in plain(browser.get("/offers?pool=hosts").text)


def test_the_prices_over_time_are_those_of_the_first_offers_of_the_table(market: Console) -> None:
    text = market.entered().get("/offers?span=1d").text
    (document,) = re.findall(r'id="curve-data">(.*?)</script>', text)
    curve = msgspec.json.decode(document)
    assert [each["name"] for each in curve["series"]] == ["m5.large eu-1a"]
    # The price is not known before the hour in which it was first seen.
    assert curve["series"][0]["values"] == [None, 0.05, 0.05]
    assert curve["at"][-1] - curve["at"][0] == 86400
    assert "so there is no history" in plain(market.entered().get("/offers?pool=arm").text)


def test_a_price_holds_until_its_next_change() -> None:
    offers = [
        Offer(pool="linux", key="a", type="m5.large", zone="eu-1a", market="spot", price=0.7, seen_at=0.0),
        Offer(pool="linux", key="b", type="c5.large", zone="eu-1a", market="spot", price=0.9, seen_at=0.0),
    ]
    changes = [
        a_change(hour=7200.0, price=0.6),
        a_change(hour=3600.0, price=0.5),
        a_change("c5.large", hour=14400.0, price=0.9),
        a_change(zone="eu-1b", price=5.0),
    ]
    found = draw_prices(changes, offers, 5000.0, 20000.0)
    assert found["at"] == [5000, 7200, 14400, 20000]
    assert [each["values"] for each in found["series"]] == [[0.5, 0.6, 0.6, 0.7], [None, None, 0.9, 0.9]]


def test_texts_of_users_stay_texts_on_the_pages_about_money(console: Console) -> None:
    pool = {"system": "s", "max_slots": 1, "offerings": [{"name": "m5.large", "price": 0.1, "labels": {"a": HOSTILE}}]}
    put_rules(console, {"pools": {"linux": pool}, "budgets": {"all": {"per_day": 1}}})
    book_now(console, a_cost(pool=HOSTILE, account=HOSTILE, offering=HOSTILE))
    browser = console.entered()
    for path in (
        "/money?by=pool",
        "/money?by=account",
        "/money?by=offering",
        "/offers",
        "/offers?pool=%3Cscript%3E%1b",
    ):
        text = browser.get(path).text
        assert "<script>" not in text, path
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text), path


def test_a_principal_that_may_not_read_rules_sees_no_money(console: Console) -> None:
    key = make_key()
    for name, role in (("h", "host"), ("r", "reader")):
        console.add(StoredPrincipal(name=name, role=role, key=key, created_at=0.0))  # type: ignore[arg-type]
    reader = console.browser(Authorization=basic("r", key))
    assert "There are no budgets" in reader.get("/money").text
    assert reader.get("/offers").status == 200
    host = console.browser(Authorization=basic("h", key))
    assert "There are no budgets" not in host.get("/money").text


def lives(**changes: Any) -> tuple[Slot, Rules]:
    rules = read_rules(RULES)
    digest = rules.pools["linux"].launch_digest
    slot = a_slot("linux-1", **{"launched_at": NOW - 60.0, "launch_digest": digest, **changes})
    return slot, rules


def request(image: str | None) -> dict[str, Any]:
    return {"api": "RunInstances", "parameters": {} if image is None else {"ImageId": image}}


def fleet_request(image: str) -> dict[str, Any]:
    return {"api": "CreateFleet", "parameters": {"LaunchTemplateConfigs": [{"Overrides": [{"ImageId": image}]}]}}


OTHER: Final = read_rules({"pools": {"linux": {"system": "s", "max_slots": 1, "ec2": {"image": "ami-1"}}}})
OLD: Final = OTHER.pools["linux"].launch_digest


@pytest.mark.parametrize(
    ("changes", "life"),
    [
        ({}, SlotLife(60.0, "ami-2", ends_at=NOW + 3540.0)),
        ({"launch_request": request("ami-1")}, SlotLife(60.0, "ami-1", ends_at=NOW + 3540.0)),
        (
            {"launch_digest": OLD, "launch_request": request("ami-1")},
            SlotLife(60.0, "ami-1", ("image",), "it has drifted"),
        ),
        (
            {"launch_digest": OLD, "launch_request": fleet_request("ami-1")},
            SlotLife(60.0, "ami-1", ("image",), "it has drifted"),
        ),
        ({"launch_digest": OLD}, SlotLife(60.0, "", ("image",), "it has drifted")),
        ({"launched_at": NOW - 3600.0}, SlotLife(3600.0, "ami-2", due="it is too old")),
        (
            {"launched_at": NOW - 3600.0, "launch_digest": OLD},
            SlotLife(3600.0, "", ("image",), "it has drifted and it is too old"),
        ),
        # an adopted machine
        ({"launch_digest": None, "launch_request": request(None)}, SlotLife(60.0, "", ends_at=NOW + 3540.0)),
        ({"instance_id": None}, SlotLife()),
        ({"launched_at": None}, SlotLife()),
    ],
)
def test_the_life_of_a_machine(changes: dict[str, Any], life: SlotLife) -> None:
    slot, rules = lives(**changes)
    assert describe_life(slot, rules.pools["linux"], NOW) == life


def test_drift_that_is_ignored_is_shown_and_replaces_nothing() -> None:
    document = {"pools": {"linux": {**RULES["pools"]["linux"], "replacement": {}}}}
    slot, _ = lives(launch_digest=OLD)
    life = describe_life(slot, read_rules(document).pools["linux"], NOW)
    assert (life.drift, life.due, life.ends_at) == (("image",), "", None)
    assert describe_life(slot, None, NOW) == SlotLife(60.0)


def test_fleet_shows_the_lives_by_the_rules_in_force(make_console: MakeConsole) -> None:
    rules = read_rules(RULES)
    console = make_console()
    now = console.store.now()
    digest = rules.pools["linux"].launch_digest
    old: dict[str, Any] = {"launched_at": now - 7200.0, "launch_digest": OLD, "launch_request": request("ami-1")}
    console.publish(
        a_slot("linux-1", version=1, launched_at=now - 120.0, launch_digest=digest),
        a_slot("linux-2", version=1, refusal="OperationNotPermitted: <b>protected</b>", **old),
    )
    put_rules(console, RULES)
    browser = console.entered()
    text = browser.get("/fleet").text
    rows = [plain(each) for each in re.findall(r'<tr>\s*<th scope="row">.*?</tr>', text, re.DOTALL)]
    assert "spot 2 min" in rows[0]  # The image of the pool is not repeated.
    assert "spot ami-1 drifted in image 2 h 0 min to be replaced because it has drifted and it is too old" in rows[1]
    panel = plain(browser.get("/fleet/slot/linux-2").text)
    assert "Age of the machine 2 h 0 min Differs from the pool in image Image ami-1" in panel
    assert "To be replaced yes because it has drifted and it is too old" in panel
    assert "To be replaced in 5" in plain(browser.get("/fleet/slot/linux-1").text)
    assert "EC2's answer OperationNotPermitted: <b>protected</b>" in panel
    # New rules count at once.
    put_rules(console, {"pools": {"linux": {**RULES["pools"]["linux"], "replacement": {}}}})
    assert "to be replaced" not in browser.get("/fleet/table").text
