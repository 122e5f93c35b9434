"""The strips of the last hour: their words, their curves, and that they are live and survive their Redis."""

import time

import pytest

from leasehold.console.history import draw_strips
from scheduler.model.history import SAMPLE_SECONDS, Sample
from scheduler.view.connection import make_redis
from tests.builders import NOW, a_slot
from tests.console.chromium import open_window
from tests.console.conftest import MakeConsole
from tests.console.served import Console


def hour(now: float, *, waiting: tuple[int, int] = (6, 10), first: int = 358) -> list[Sample]:
    """Return samples since `first` samples ago; the newest differs from all others."""
    old = [
        Sample(now - number * SAMPLE_SECONDS, waiting[0], 60.0, 0.5, int(number % 60 == 0))
        for number in range(first, 0, -1)
    ]
    return [*old, Sample(now, waiting[1], 1_680.0, 0.55, 0)]


def words(samples: list[Sample]) -> list[str]:
    return [each.words for each in draw_strips(samples, NOW)]


def test_each_strip_names_its_change_in_an_hour() -> None:
    assert words(hour(NOW)) == [
        "10 wait, 4 more than an hour ago",
        "55 % leased, 5 points more than an hour ago",
        "5 launches in the last hour",
        "28 min is the longest wait, 27 min longer than an hour ago",
    ]


def test_a_shorter_history_names_its_age() -> None:
    assert words(hour(NOW, waiting=(6, 6), first=72))[0] == "6 wait, as 12 min ago"
    assert words(hour(NOW, waiting=(1_200, 6), first=6))[0] == "6 wait, 1,194 fewer than 1 min ago"
    assert words([Sample(NOW, 0, 0.0, None, 0)]) == [
        "0 wait",
        "no machine runs",
        "0 launches in 1 s",
        "0 s is the longest wait",
    ]
    assert words([]) == []


def test_a_curve_has_its_numbers_in_words_and_a_gap_where_there_is_no_sample() -> None:
    strips = draw_strips([each for each in hour(NOW) if not 600 < NOW - each.at < 1_200], NOW)
    assert strips[0].text.endswith("In the last hour at least 6, at most 10.")
    assert strips[2].text.endswith("In the last hour at least 0 a minute, at most 1 a minute.")
    assert [len(each.points) for each in strips] == [2, 2, 0, 2]
    assert len(strips[2].bars) == 5
    assert all(0 <= y <= 40 for each in strips for _, y, _ in each.bars)


@pytest.mark.parametrize("path", ["/fleet", "/queues", "/fleet/history"])
def test_the_strips_survive_the_console_and_are_empty_after_a_flush(
    make_console: MakeConsole, redis_url: str, path: str
) -> None:
    console: Console = make_console(rows=(a_slot("linux-1"),))
    assert "no figures of the last hour yet" in console.entered().get(path).text
    for sample in hour(time.time()):
        console.view_cache.write_sample(sample)
    for fresh in (make_console(), make_console()):
        assert "10 wait, 4 more than an hour ago" in fresh.entered().get(path).text
    with make_redis(redis_url) as client:
        assert client.memory_usage("leasehold:history") < 2_000_000
        client.flushall()
    later = make_console()
    assert "no figures of the last hour yet" in later.entered().get(path).text


@pytest.mark.parametrize("width", [400, 1280])
def test_the_strips_are_live_and_have_their_numbers_as_names(console: Console, width: int) -> None:
    with open_window(f"http://127.0.0.1:{console.settings.console.port}", width=width) as window:
        window.open(f"/fleet?token={console.token}")
        window.await_text("#history", "no figures of the last hour yet")
        for sample in hour(time.time()):
            console.view_cache.write_sample(sample)
        # The page does this every ten seconds; the console reads Redis every five.
        console.app.state.history.read_at = float("-inf")
        window.run("htmx.trigger('#history', 'reload') || 1")
        window.await_text("#history", "10 wait, 4 more than an hour ago")
        names = window.settled(lambda: [each.accessible_name for each in window.find_all("#history svg")])
        assert [name.split(":")[0] for name in names] == ["Waiting", "Leased share", "Launches", "Longest wait"]
        assert "at least 6, at most 10" in names[0]
        assert window.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert window.errors() == []
