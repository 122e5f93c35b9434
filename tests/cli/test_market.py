"""Prices and offers on the command line, on the emulator: import, refresh, apply, check, and the list of offers."""

import json
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from leasehold.cli.connecting import load_settings
from leasehold.stack.preparation import QuietDispatcher
from scheduler.model.market import StoredMarket
from scheduler.operations.market import save_market
from scheduler.store.opening import open_store
from tasks.machines import read_market
from tests.cli.conftest import Run
from tests.client.intake import FakeIntake
from tests.ec2.conftest import Emulator, _no_settings_of_aws, emulator, server
from tests.store.test_market import a_type
from workers.services import Services

__all__ = ["_no_settings_of_aws", "emulator", "server"]

RULES = """
[pools.linux]
system = "x86_64-linux"
max_slots = 2
price_factor = 3
[pools.linux.ec2]
image = "ami-01234567"
subnets = ["us-east-1a:subnet-01234567"]
[[pools.linux.offerings]]
name = "general"
[pools.linux.offerings.require]
cpus = { min = 2, max = 4 }
memory_mib = { max = 16384 }
exclude = ["t*"]
[[pools.linux.offerings]]
name = "last"
market = "on-demand"
type = "m5.large"
"""
FIXED = [{"type": "m5dn.large", "price": 0.01}, {"type": "c6id.large", "price": 0.02}]


@pytest.fixture
def database(intake: FakeIntake, run: Run, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Return an empty database of a stack, beside `rules.toml`; EC2 cannot be reached."""
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", intake.url)
    monkeypatch.setenv("LEASEHOLD_DATABASE__URL", sqlite_url)
    monkeypatch.setenv("LEASEHOLD_AWS__ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("LEASEHOLD_AWS__REGION", "us-east-1")
    monkeypatch.setenv("LEASEHOLD_AWS__ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("LEASEHOLD_AWS__SECRET_ACCESS_KEY", "testing")
    (tmp_path / "rules.toml").write_text(RULES)
    return sqlite_url


@pytest.fixture
def cloud(database: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """Return the EC2 of the stack, with a fixed spot price of two types."""
    monkeypatch.setenv("LEASEHOLD_AWS__ENDPOINT_URL", emulator.url)
    emulator.steer(spot_prices={"fixed": FIXED}, instance_types=["m5dn.*", "c6id.*", "t3.*"])
    return emulator


def load(database: str) -> StoredMarket:
    with closing(open_store(database)) as store:
        return store.load_market()


def test_apply_reads_the_catalogue_and_offers_lists_what_would_be_bought(
    cloud: Emulator, database: str, run: Run
) -> None:
    applied = run("apply", "rules.toml")
    assert (applied.status, applied.out, applied.complaints) == (0, "rules version 1\n", [])
    found = json.loads(run("offers", "--json").out)
    first = found[0]
    assert (first["key"], first["price"], first["source"], first["zone"]) == (
        *("m5dn.large/spot", 0.01, "spot-history", "us-east-1a"),
    )
    assert first["resources"] == {"cpus": 2.0, "memory_mib": 8192.0}
    assert (first["reasons"], found[1]["key"]) == ([], "c6id.large/spot")
    assert len(found) > 4
    # No price of on-demand machines was imported.
    assert [(each["key"], each["reasons"]) for each in found if each["market"] == "on-demand"] == [
        ("last", ["no price is known"])
    ]
    lines = run("offers", "--pool", "linux", "--cpus", "4").out.splitlines()
    assert lines[0].split()[:7] == ["pool", "offering", "zone", "$/hour", "source", "seen", "resources"]
    assert next(line for line in lines if " m5dn.large/spot " in line).rstrip().endswith("is too small")
    assert "cpus=4" in lines[2]
    assert [line.rstrip().endswith(" next") for line in lines[2:]].count(True) == 1
    assert run("config", "check", "rules.toml").status == 0
    snapshot = json.loads(run("snapshot").out)
    assert snapshot["config"]["pools"]["linux"]["offerings"][0]["name"].endswith("/spot")


def test_refresh_reads_the_prices_of_the_offerings_of_all_pools(cloud: Emulator, run: Run) -> None:
    offerings = "[[pools.linux.offerings]]\nname = 'm5dn.large'\n[[pools.linux.offerings]]\nname = 'c6id.large'\n"
    pool = "[pools.linux]\nsystem = 's'\nmax_slots = 1\nmarket = { prices = true }\n"
    Path("static.toml").write_text(pool + offerings + "price = 0.5\n")
    assert run("apply", "static.toml").status == 0
    assert "no price is known" in run("offers").out
    found = run("prices", "refresh")
    assert (found.status, found.out) == (0, "10 prices, 0 instance types\n")
    assert cloud.calls("DescribeInstanceTypes") == []
    shown = [(each["key"], each["price"], each["source"]) for each in json.loads(run("offers", "--json").out)]
    assert shown == [("m5dn.large", 0.01, "spot-history"), ("c6id.large", 0.5, "rules")]


def test_offers_name_the_accounts_for_which_a_budget_stops_them(cloud: Emulator, run: Run) -> None:
    """The column is there only if a budget of some accounts stops an offering."""
    pool = "[pools.linux]\nsystem = 's'\nmax_slots = 1\nofferings = [{ name = 'm5dn.large', price = 0.5 }]\n"
    Path("static.toml").write_text(pool)
    assert run("apply", "static.toml").status == 0
    assert "not for" not in run("offers").out
    Path("static.toml").write_text(pool + "[budgets.some]\nper_hour = 0.1\naccounts = ['ci', 'web']\n")
    assert run("apply", "static.toml").status == 0
    reason = "budget some stops it: it allows 0.10 dollars an hour at present, 0.00 run"
    (found,) = json.loads(run("offers", "--json").out)
    assert (found["reasons"], found["is_next"]) == ([], True)
    assert found["stopped_for"] == [{"budget": "some", "accounts": ["ci", "web"], "reason": reason}]
    head, _, row = run("offers").out.splitlines()
    assert head.rstrip().endswith("next, or why not  not for")
    assert row.endswith(f"next              ci, web ({reason})")


def test_on_demand_prices_come_from_the_price_list_if_that_is_switched_on(
    cloud: Emulator, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("apply", "rules.toml").status == 0
    assert cloud.calls("GetProducts") == []
    monkeypatch.setenv("LEASEHOLD_MARKET__ON_DEMAND_INTERVAL", "1d")
    cloud.set_fault(code="AccessDeniedException", message="not authorized", action="GetProducts", count=1)
    refused = run("prices", "refresh")
    line = "on-demand prices were not read; imported and known ones remain: the call of the cloud failed"
    assert (refused.status, len(refused.complaints)) == (0, 1)
    assert refused.complaints[0].startswith(f"leasehold: {line} (auth: AccessDeniedException)")
    assert run("prices", "refresh").complaints == []
    (last,) = [each for each in json.loads(run("offers", "--json").out) if each["key"] == "last"]
    assert (last["price"], last["source"], last["zone"]) == (0.096, "pricing-api", "us-east-1")
    assert last["reasons"] == ["costs more than 3 times the cheapest one that fits"]


def test_the_health_worker_logs_a_refused_price_list_once(
    cloud: Emulator, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spot prices are read all the same, and the next success is logged."""
    assert run("apply", "rules.toml").status == 0
    monkeypatch.setenv("LEASEHOLD_MARKET__ON_DEMAND_INTERVAL", "0.001")
    monkeypatch.setattr("tasks.machines.app.services", Services(load_settings(), QuietDispatcher))
    cloud.set_fault(code="AccessDeniedException", message="not authorized", action="GetProducts", count=2)
    with capture_logs() as lines:
        outcomes = [read_market.run() for _ in range(3)]
    assert [line["action"] for line in lines] == [
        *("market.read", "market.prices_refused"),
        "market.read",
        *("market.read", "market.prices"),
    ]
    assert outcomes[0] == outcomes[1] != outcomes[2]
    # The third reading asks for the type and for public addresses.
    assert len(cloud.calls("GetProducts")) == 4


def test_the_health_worker_reads_what_the_ledger_needs_if_no_pool_uses_the_market(
    cloud: Emulator, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = "[pools.linux]\nsystem = 's'\nmax_slots = 1\nec2 = { image = 'ami-1', volume_gib = 40 }\n"
    Path("plain.toml").write_text(pool)
    assert run("apply", "plain.toml").status == 0
    monkeypatch.setattr("tasks.machines.app.services", Services(load_settings(), QuietDispatcher))
    assert (read_market.run(), cloud.calls("GetProducts")) == ("no pool uses them", [])
    monkeypatch.setenv("LEASEHOLD_MARKET__ON_DEMAND_INTERVAL", "1d")
    monkeypatch.setattr("tasks.machines.app.services", Services(load_settings(), QuietDispatcher))
    assert read_market.run() == "prices: 2"
    assert cloud.calls("DescribeSpotPriceHistory") == []


def test_without_on_demand_prices_the_health_worker_calls_no_price_list(
    cloud: Emulator, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("apply", "rules.toml").status == 0
    monkeypatch.setattr("tasks.machines.app.services", Services(load_settings(), QuietDispatcher))
    read_market.run()
    assert cloud.calls("GetProducts") == []


def test_without_ec2_the_stored_catalogue_counts(database: str, run: Run) -> None:
    refused = run("apply", "rules.toml")
    assert refused.status == 2
    first, line = refused.complaints
    assert first.startswith(
        "leasehold: instance types and prices are those of the database: the call of the cloud failed"
    )
    wanted = "a catalogue of instance types (`leasehold prices refresh` reads it from EC2), got none"
    assert line == f"leasehold: pools.linux.offerings[0].require: expected {wanted}"
    with closing(open_store(database)) as store:
        save_market(store, types=[a_type(zones=("us-east-1a",))])
    line = "pools.linux.offerings[0].require: expected a type with a known spot price"
    assert run("apply", "rules.toml").complaints[-1].startswith(f"leasehold: {line}")
    Path("prices.csv").write_text("type,zone,market,price\nm5.large,us-east-1a,spot,0.05\n")
    assert run("prices", "import", "prices.csv").out == "1 prices\n"
    assert run("prices", "import", "prices.csv").out == "1 prices, unchanged\n"
    assert run("apply", "rules.toml").out == "rules version 1\n"
    assert "m5.large/spot" in run("offers").out
    failed = run("prices", "refresh")
    assert (failed.status, len(failed.complaints)) == (1, 1)


def test_config_check_compares_requirements_with_the_catalogue_of_the_database(database: str, run: Run) -> None:
    unchecked = run("config", "check", "rules.toml")
    assert unchecked.status == 0
    warning = "warning: offerings.require: expected a catalogue of instance types in the database, to check it"
    assert warning in unchecked.out
    with closing(open_store(database)) as store:
        save_market(store, types=[a_type(cpus=64.0, zones=("us-east-1a",))])
    found = run("config", "check", "rules.toml")
    line = "expected at least one spot type of the catalogue, got none of 1; 1 miss only cpus"
    assert (found.status, found.complaints) == (2, [f"leasehold: pools.linux.offerings[0].require: {line}"])


def test_an_import_with_a_hole_is_one_line_and_adds_nothing(database: str, run: Run) -> None:
    Path("prices.csv").write_text("type,region,market,price\nm5.large,us-east-1,spot,0.05\nc5.large,us-east-1,spot,\n")
    found = run("prices", "import", "prices.csv")
    assert (found.status, found.complaints) == (
        2,
        ["leasehold: prices.csv, line 3, price: expected a value, got nothing"],
    )
    assert load(database) == StoredMarket()


def test_offers_before_any_rules_and_of_an_unknown_pool(database: str, run: Run) -> None:
    assert run("offers").complaints == ["leasehold: no rules were applied yet: `leasehold apply FILE`"]
    assert run("prices", "refresh").complaints == ["leasehold: no rules were applied yet: `leasehold apply FILE`"]
    hosts = '[pools.hosts]\nsystem = "s"\nprovider = "static"\n'
    Path("static.toml").write_text(f'[pools.linux]\nsystem = "s"\nmax_slots = 1\n{hosts}')
    assert run("apply", "static.toml").status == 0
    found = json.loads(run("offers", "--json").out)
    assert [(each["pool"], each["key"], each["price"]) for each in found] == [("linux", "", None)]
    assert "(template)" in run("offers").out
    assert run("offers", "--pool", "linus").status == 2
    assert run("offers", "--cpus", "many").status == 2
