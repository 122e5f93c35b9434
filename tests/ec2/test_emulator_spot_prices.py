"""The emulator's spot prices: a seeded process within its bounds."""

from typing import Any

from leasehold_emulator.settings import SpotMarket
from leasehold_emulator.spot_prices import SpotPrices, find_on_demand_price

from tests.ec2.conftest import Emulator

HOUR = 3600.0


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def walk(seed: int, hours: int, **settings: Any) -> list[float]:
    """Return the price of one type in one zone after each hour."""
    clock = Clock()
    prices = SpotPrices(SpotMarket(**settings), seed, clock)
    found = []
    for hour in range(hours):
        clock.now = hour * HOUR
        found.append(prices.find("m5.large", "us-east-1a").price)
    return found


def test_prices_move_within_their_bounds() -> None:
    usual = find_on_demand_price("m5.large")
    found = walk(1, 200)
    assert len(set(found)) > 100
    assert 0.3 * usual - 1e-4 <= min(found) < max(found) <= 0.7 * usual + 1e-4


def test_the_seed_decides_the_walk() -> None:
    assert walk(1, 20) == walk(1, 20)
    assert walk(1, 20) != walk(2, 20)


def test_a_walk_is_the_same_however_often_it_is_read() -> None:
    clock = Clock()
    prices = SpotPrices(SpotMarket(), 1, clock)
    clock.now = 19 * HOUR
    assert prices.find("m5.large", "us-east-1a").price == walk(1, 20)[-1]


def test_speed_moves_the_process_faster_and_without_volatility_it_stands() -> None:
    assert walk(1, 10, speed=2.0) == walk(1, 20)[::2]
    assert len(set(walk(1, 20, volatility=0.0))) == 1
    assert len(set(walk(1, 20, speed=0.0))) == 1


def test_a_fixed_price_counts_and_the_other_walks_go_on(emulator: Emulator) -> None:
    clock = Clock()
    prices = SpotPrices(SpotMarket(), 1, clock)
    clock.now = 5 * HOUR
    prices.change(SpotMarket.model_validate({"fixed": [{"type": "c5.large", "price": 9.0}]}), 1)
    assert prices.find("c5.large", "us-east-1b").price == 9.0
    assert prices.find("m5.large", "us-east-1a").price == walk(1, 6)[-1]


def test_bounds_that_contradict_each_other_are_refused(emulator: Emulator) -> None:
    status, answer = emulator.ask("PUT", "settings", {"spot_prices": {"low": 0.5, "high": 0.4}})
    assert (status, answer) == (400, {"error": "spot_prices.high: expected at least low (0.5), got 0.4"})
