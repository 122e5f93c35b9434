"""The workload of `examples.flexible` is the one that its page describes, and a play of it ends."""

from collections import Counter
from random import Random

import pytest

from examples.flexible.__main__ import ELASTIC
from examples.flexible.figures import Case, compare, measure
from examples.flexible.page import list_table, write_page
from examples.flexible.play import Setting
from examples.flexible.workload import MIXES, Application, draw_application, draw_workload

DRAWN = 8000


def draw(mix: str) -> list[Application]:
    random = Random(1)
    return [draw_application(random, MIXES[mix]) for _ in range(DRAWN)]


@pytest.mark.parametrize("mix", MIXES)
def test_each_class_has_its_share(mix: str) -> None:
    shares = {kind: count / DRAWN for kind, count in Counter(each.kind for each in draw(mix)).items()}
    assert shares == pytest.approx(MIXES[mix], abs=0.02)


def test_a_seed_gives_the_same_workload_and_its_rate_is_the_load() -> None:
    """Twenty-five machines get bursts of five."""
    workload = draw_workload(3, 25, 2000)
    assert workload == draw_workload(3, 25, 2000)
    assert set(Counter(workload.arrivals).values()) == {5}
    work = sum(each.run * each.instances * each.cpus for each in workload.applications) / (25 * 32)
    memory = sum(each.run * each.instances * each.memory_gib for each in workload.applications) / (25 * 128)
    assert workload.arrivals[-1] == pytest.approx(max(work, memory), rel=0.15)


def test_a_few_applications_are_played_under_every_setting() -> None:
    figures = [
        measure(Case("loads", 0.9, Setting(elastic, "size"), seed=0, machines=1, applications=12))
        for elastic in ELASTIC
    ]
    assert [each.by_class["all"]["turnaround"].mean > 0 for each in figures] == [True] * 4
    assert compare(figures[:1], figures[:1]).mean == 1
    assert len(list(list_table(figures))) == 2 + len(ELASTIC)
    assert "| 0.9 | flexible below malleable |" in write_page(figures)
