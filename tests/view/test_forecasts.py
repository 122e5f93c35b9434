"""The port to the forecasts, in memory and on Redis."""

import pytest

from scheduler.model.forecasts import Forecast, Foreseen, Quality
from scheduler.ports import Forecasts, ViewUnavailableError
from scheduler.protocol.names import RedisNames
from scheduler.view.connection import make_redis
from scheduler.view.forecasts import FIELDS_A_COMMAND, RedisForecasts
from testbed.servers import OpenRedis

ONE = Forecast(as_of=100.0, low=110.0, median=120.0, high=130.0, late=150.0)
UNKNOWN = Forecast(as_of=100.0, unknown="beyond")


def test_nothing_is_known_before_something_is_published(forecasts: Forecasts) -> None:
    assert forecasts.read(["r1"]) == {}
    assert forecasts.read_summary() is None
    assert forecasts.read_record() is None


def test_what_is_published_replaces_all_of_before(forecasts: Forecasts) -> None:
    quality = Quality(name="all", count=60, coverage=0.8, width=40.0, loss=7.5, calibration=((0.1, 0.12),))
    forecasts.publish(Foreseen(as_of=90.0, forecasts={"r1": ONE, "r2": ONE}), b"first")
    forecasts.publish(
        Foreseen(as_of=100.0, forecasts={"r2": UNKNOWN}, newcomers={"[]": ONE}, qualities=(quality,), plays=3),
        b"second",
    )
    assert forecasts.read(["r1", "r2", "r3"]) == {"r2": UNKNOWN}
    assert forecasts.read_summary() == Foreseen(as_of=100.0, newcomers={"[]": ONE}, qualities=(quality,), plays=3)
    assert forecasts.read_record() == b"second"
    forecasts.publish(Foreseen(as_of=110.0), b"third")
    assert forecasts.read(["r2"]) == {}


def test_many_forecasts_are_published_together(forecasts: Forecasts) -> None:
    many = {f"r{number}": ONE for number in range(2 * FIELDS_A_COMMAND + 1)}
    forecasts.publish(Foreseen(as_of=100.0, forecasts=many), b"")
    assert forecasts.read(many) == many


def test_what_another_version_wrote_counts_as_missing(redis_url: str, open_redis: OpenRedis) -> None:
    client, key = open_redis(redis_url), RedisNames().forecasts
    client.hset(key, mapping={"r1": b"{}", "r2": b'{"as_of": 1.0}'})
    client.set(f"{key}:summary", b"[]")
    forecasts = RedisForecasts(client)
    assert forecasts.read(["r1", "r2"]) == {"r2": Forecast(as_of=1.0)}
    assert forecasts.read_summary() is None


def test_a_redis_that_does_not_answer_is_an_error_of_the_view() -> None:
    forecasts = RedisForecasts(make_redis("redis://127.0.0.1:1/0"))
    for call in (lambda: forecasts.read(["r1"]), forecasts.read_summary, forecasts.read_record):
        with pytest.raises(ViewUnavailableError):
            call()
    with pytest.raises(ViewUnavailableError):
        forecasts.publish(Foreseen(as_of=1.0), b"")
