"""The page Forecasts, and the forecast on the page of a reservation, without a worker."""

import pytest

from leasehold.console.pages.forecasts import SIDE, draw_calibration
from scheduler.model.forecasts import Foreseen, Quality
from scheduler.view.connection import make_redis
from scheduler.view.forecasts import RedisForecasts
from tests.console.conftest import MakeConsole
from tests.console.served import Console
from tests.console.test_money_pages import plain


def foresee(url: str, *qualities: Quality) -> None:
    RedisForecasts(make_redis(url)).publish(Foreseen(as_of=100.0, qualities=qualities, plays=32, seconds=2.0), b"")


def test_without_forecasts_the_page_names_the_process(console: Console) -> None:
    text = plain(console.entered().get("/forecasts").text)
    assert "There are no forecasts: the process foresight has published none" in text


def test_the_page_has_the_quality_by_class_and_a_picture(make_console: MakeConsole, redis_url: str) -> None:
    pairs = ((0.1, 0.12), (0.5, 0.4), (0.9, 0.88))
    console = make_console()
    foresee(
        redis_url,
        Quality(name="all", count=1200, coverage=0.76, width=90.0, loss=7.0, calibration=pairs),
        Quality(name="<b>", count=3),
    )
    page = console.entered().get("/forecasts").text
    text = plain(page)
    assert "76 % of the last reservations started within their interval of 80 %" in text
    assert "1,200 have started after more than a minute" in text
    assert "50% stated, 40% started by then" in page
    assert "&lt;b&gt;" in page
    assert page.count("<circle") == 3


def test_without_a_start_the_page_has_no_share(make_console: MakeConsole, redis_url: str) -> None:
    console = make_console()
    foresee(redis_url, Quality(name="all", count=0))
    assert "No reservation has started yet that had a forecast" in plain(console.entered().get("/forecasts").text)


@pytest.mark.parametrize(("pair", "point"), [((0.0, 0.0), (0.0, SIDE)), ((1.0, 1.0), (SIDE, 0.0))])
def test_the_diagonal_of_the_picture_is_a_kept_promise(pair: tuple[float, float], point: tuple[float, float]) -> None:
    assert draw_calibration([list(pair)]).points == (point,)
