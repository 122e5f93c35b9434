"""The simulated market: prices that move, shortages, interruptions, and the bill."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler.model.rules import Rules
from scheduler.model.validation import InvalidInputError
from scheduler.simulation.cloud_documents import MarketDocument, read_simulated_cloud
from scheduler.simulation.fleet import make_fleet
from scheduler.simulation.market import SimulatedMarket
from scheduler.simulation.price_walk import PriceWalk
from scheduler.simulation.trace import TracePlay
from scheduler.simulation.workload import Workload
from tests.rules.playing import Document, Played, a_scenario, play_out, submit

HOUR = 3600.0
SMALL = {"name": "small", "cpus": 2, "memory_mib": 4096, "on_demand": 0.1}
LARGE = {"name": "large", "cpus": 4, "memory_mib": 8192, "on_demand": 0.2}
BY_REQUIREMENT = [{"name": "any", "require": {"cpus": {"min": 2}}}]
PRICES = [
    {"at": 0, "type": "small", "price": 0.06},
    {"at": 0, "type": "large", "price": 0.10},
    {"at": HOUR, "type": "small", "price": 0.09},
    {"at": HOUR, "type": "large", "price": 0.05},
]


def a_market(**keys: Any) -> SimulatedMarket:
    return SimulatedMarket(MarketDocument.model_validate({"types": [SMALL, LARGE], **keys}), Rules())


def buying(*timeline: Document, market: Document, cloud: Document | None = None, **pool: Any) -> Document:
    """Return a scenario with a pool by requirement on a market of two types, with kicks and wakes."""
    rules = {"offerings": BY_REQUIREMENT, "default_resources": {"cpus": 2}, **pool}
    found = a_scenario(*timeline, pool=rules, cloud={**(cloud or {}), "market": {"types": [SMALL, LARGE], **market}})
    return {**found, "kicks": True, "wakes": True}


def launched(played: Played) -> list[str]:
    return [each for each in played.decisions if " launch " in each]


def test_a_walk_begins_and_stays_within_its_bounds_and_depends_on_its_seed_alone() -> None:
    walks = [PriceWalk(0.3, 0.7, 0.5, 300, seed) for seed in ("a", "a", "b")]
    shares = [[walk.find_share(step) for step in range(500)] for walk in walks]
    assert shares[0] == shares[1] != shares[2]
    assert min(shares[0]) == 0.3
    assert max(shares[0]) == 0.7
    assert walks[0].find_share(7) == shares[1][7]


def test_a_step_holds_until_the_next_one_and_other_prices_move_as_shares_of_on_demand() -> None:
    market = a_market(prices=PRICES[::2])
    assert [market.find_price("small", "spot", at) for at in (0.0, HOUR - 1, HOUR, 9 * HOUR)] == [
        *(0.06, 0.06, 0.09, 0.09)
    ]
    assert market.find_price("small", "on-demand", 5.0) == 0.1
    moving = [market.find_price("large", "spot", at * 300.0) or 0.0 for at in range(100)]
    assert len(set(moving)) > 90
    assert 0.06 <= min(moving) <= max(moving) <= 0.14
    assert moving[1] == market.find_price("large", "spot", 599.0)
    assert a_market().find_price("other", "spot", 0.0) is None


def test_a_machine_costs_the_price_of_each_moment() -> None:
    market = a_market(prices=PRICES)
    assert market.sum_price("small", "spot", 0.5 * HOUR, 2 * HOUR) == pytest.approx(0.5 * 0.06 + 0.09)
    assert market.sum_price("small", "on-demand", 0.0, 2 * HOUR) == pytest.approx(0.2)
    walking = a_market()
    steps = [walking.find_price("small", "spot", number * 300.0) or 0.0 for number in range(12)]
    assert walking.sum_price("small", "spot", 0.0, HOUR) == pytest.approx(sum(steps) / 12)
    assert a_market().sum_price("other", "spot", 0.0, 1.0) is None


def test_shortages_begin_and_last_as_long_as_their_rates_on_average() -> None:
    market = a_market(shortage_rate=0.5, shortage_seconds=1800)
    times = [minute * 60.0 for minute in range(60_000)]
    short = [market.is_short("small", "spot", at) for at in times]
    # Half an hour of each two and a half: two hours without a shortage, and its duration.
    assert sum(short) / len(short) == pytest.approx(0.2, abs=0.03)
    assert not any(market.is_short("small", "on-demand", at) for at in times[:1000])
    assert [market.is_short("small", "spot", at) for at in reversed(times[:1000])] == short[:1000][::-1]
    assert not any(a_market().is_short("small", "spot", at) for at in times[:1000])


def test_a_launch_takes_the_offering_that_is_cheapest_at_its_time() -> None:
    played = play_out(buying(submit(0, "r1"), submit(HOUR, "r2", resources={"cpus": 4}), market={"prices": PRICES}))
    assert launched(played) == ["0 launch linux-1 small/spot demand", "3600 launch linux-2 large/spot demand"]
    dearer = play_out(buying(submit(HOUR, "r1"), market={"prices": PRICES}))
    assert launched(dearer) == ["3600 launch linux-1 large/spot demand"]


def test_a_change_of_prices_causes_a_tick() -> None:
    """The price of the only type that fits falls below `max_price` while nothing else happens."""
    scenario = buying(submit(0, "r1", resources={"cpus": 4}), market={"prices": PRICES})
    scenario["config"]["pools"]["linux"]["market"] = {"max_price": 0.05}
    assert launched(play_out({**scenario, "until": 2 * HOUR})) == ["3600 launch linux-1 large/spot demand"]


def test_a_shortage_refuses_spot_launches_of_its_type() -> None:
    market = {"prices": PRICES, "shortage_rate": 1e9, "shortage_seconds": "100d"}
    played = play_out(buying(submit(1, "r1"), market=market, price_factor=1.0))
    assert played.ticks_at[1.0] == [*("launch linux-1 small/spot demand", "r1 waits booting", "r1 waits capacity")]


def test_the_bill_has_hours_and_dollars_of_each_offering() -> None:
    timeline = [submit(0, "r1"), {"at": 2 * HOUR, "release": "r1"}]
    played = play_out({**buying(*timeline, market={"prices": PRICES}, idle_scale_down=0), "until": 3 * HOUR})
    assert played.state["bill"] == [
        {"pool": "linux", "offering": "small/spot", "market": "spot", "hours": 2.0, "dollars": 0.15}
    ]
    still = play_out({**buying(submit(0, "r1"), market={"prices": PRICES}), "until": HOUR})
    assert [(each["hours"], each["dollars"]) for each in still.state["bill"]] == [(1.0, 0.06)]


def test_without_a_market_there_is_no_bill() -> None:
    assert "bill" not in play_out(a_scenario(submit(0, "r1"))).state
    fleet = make_fleet({"pools": {"linux": {"system": "x", "max_slots": 1}}}, read_simulated_cloud({}, Rules()))
    play = TracePlay(Workload(Path("log"), (), ()), fleet)
    assert "bill" not in msgspec.to_builtins(play.sum_up())


def test_spot_machines_of_a_scenario_are_interrupted_at_the_rate_of_the_market_alone() -> None:
    market = {"prices": PRICES, "interruption_rate": 60}
    scenario = {**buying(submit(0, "r1"), market=market), "until": HOUR}
    assert any(" interrupted" in each for each in play_out(scenario).decisions)
    scenario = buying(submit(0, "r1"), market={"prices": PRICES}, cloud={"interruption_rate": 60})
    assert not any(" interrupted" in each for each in play_out({**scenario, "until": HOUR}).decisions)


@pytest.mark.parametrize(
    ("market", "line"),
    [
        ({"low": 0.6, "high": 0.5}, "cloud.market.high: expected at least low (0.6), got 0.5"),
        ({"types": [SMALL, SMALL]}, 'cloud.market.types: expected types with different names, got "small"'),
        ({"prices": [{"type": "m", "price": -1}]}, "cloud.market.prices[0].price: expected a number >= 0, got -1"),
        ({"low": 2}, "cloud.market.low: expected a number from 0 to 1, got 2"),
    ],
)
def test_a_wrong_market_is_refused_in_one_line(market: Document, line: str) -> None:
    with pytest.raises(InvalidInputError) as raised:
        read_simulated_cloud({"market": market}, Rules())
    assert str(raised.value) == line
