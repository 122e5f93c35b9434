"""The workload of `bench.flexible` is the one that its page describes, and a play of it ends."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random
from statistics import quantiles

import pytest

from bench._flexible_figures import Case, compare, estimate, measure
from bench._flexible_page import list_table, write_page
from bench._flexible_play import Setting
from bench._flexible_workload import (
    ASKED,
    CPUS,
    MEMORY_GIB,
    MIXES,
    TASKS,
    Application,
    draw_application,
    draw_workload,
    fits_empty_cluster,
    interpolate,
)
from bench.flexible import ELASTIC

DRAWN = 8000
AN_APPLICATION = Application("elastic", essential=2, elastic=10, cpus=0.5, memory_gib=2.0, run=100.0, error=2.0)


def draw(mix: str) -> list[Application]:
    random = Random(1)
    return [draw_application(random, MIXES[mix]) for _ in range(DRAWN)]


@pytest.mark.parametrize("mix", MIXES)
def test_each_class_has_its_share(mix: str) -> None:
    shares = {kind: count / DRAWN for kind, count in Counter(each.kind for each in draw(mix)).items()}
    assert shares == pytest.approx(MIXES[mix], abs=0.02)


def test_an_elastic_application_has_one_essential_instance_twice_as_often_as_two_three_or_four() -> None:
    found = [each.essential for each in draw("batch") if each.kind == "elastic"]
    shares = {essential: count / len(found) for essential, count in Counter(found).items()}
    assert shares == pytest.approx({1: 0.4, 2: 0.2, 3: 0.2, 4: 0.2}, abs=0.02)


def test_instances_follow_from_tasks_by_class() -> None:
    """Ten elastic ones a task; a rigid one has all its tasks, an interactive one one of them, as essential ones."""
    kinds: dict[str, list[Application]] = {}
    for each in draw("interactive"):
        kinds.setdefault(each.kind, []).append(each)
    assert {each.elastic % 10 for each in kinds["elastic"]} == {0}
    assert {each.elastic for each in kinds["rigid"]} == {0}
    assert {each.essential for each in kinds["interactive"]} == {1}
    tasks = [each.elastic // 10 for each in kinds["elastic"]], [each.essential for each in kinds["rigid"]]
    for found in (*tasks, [each.instances for each in kinds["interactive"]]):
        shares = [sum(each <= most for each in found) / len(found) for most in (3, 25, 100)]
        assert shares == pytest.approx([0.75, 0.9, 0.95], abs=0.04)


@pytest.mark.parametrize("quantiles", [TASKS, CPUS, MEMORY_GIB])
def test_between_two_quantiles_it_is_linear_and_above_the_last_one_it_is_constant(
    quantiles: tuple[tuple[float, float], ...],
) -> None:
    for (low, least), (high, most) in pairwise(quantiles):
        assert interpolate(quantiles, low) == least
        assert interpolate(quantiles, (low + high) / 2) == pytest.approx((least + most) / 2)
    assert interpolate(quantiles, 1.0) == quantiles[-1][1]


def test_an_instance_requests_seven_tenths_of_the_trace() -> None:
    found = draw("batch")
    for values, table in (([each.cpus for each in found], CPUS), ([each.memory_gib for each in found], MEMORY_GIB)):
        at = quantiles(values, n=20)
        assert at[9] == pytest.approx(ASKED * interpolate(table, 0.5), rel=0.15)
        assert at[17] == pytest.approx(ASKED * interpolate(table, 0.9), rel=0.15)


def test_a_size_counts_one_two_or_three_dimensions_and_may_be_wrong() -> None:
    sizes = [AN_APPLICATION.find_size(name) for name in ("1D", "2D", "3D", "3D with error")]
    assert sizes == [100.0, 1200.0, 1200.0, 2400.0]


def test_an_application_that_does_not_fit_on_the_empty_cluster_is_not_played() -> None:
    """64 instances of half a cpu fit on one machine of 32 by cpus."""
    assert fits_empty_cluster(replace(AN_APPLICATION, elastic=62), 1)
    assert not fits_empty_cluster(replace(AN_APPLICATION, elastic=63), 1)


def test_a_seed_gives_the_same_workload_and_its_rate_is_the_load() -> None:
    """Twenty-five machines get bursts of five."""
    workload = draw_workload(3, 25, 2000)
    assert workload == draw_workload(3, 25, 2000)
    assert set(Counter(workload.arrivals).values()) == {5}
    work = sum(each.run * each.instances * each.cpus for each in workload.applications) / (25 * 32)
    memory = sum(each.run * each.instances * each.memory_gib for each in workload.applications) / (25 * 128)
    assert workload.arrivals[-1] == pytest.approx(max(work, memory), rel=0.15)


def test_an_interval_is_student_s() -> None:
    """Of 1, 2 and 3: the mean is 2, the deviation 1, and t for two degrees of freedom 4.303."""
    found = estimate([1.0, 2.0, 3.0])
    assert (found.mean, found.half) == pytest.approx((2.0, 4.303 / 3**0.5))


def test_a_few_applications_are_played_under_every_setting() -> None:
    figures = [
        measure(Case("loads", 0.9, Setting(elastic, "size"), seed=0, machines=1, applications=12))
        for elastic in ELASTIC
    ]
    assert [each.by_class["all"]["turnaround"].mean > 0 for each in figures] == [True] * 4
    assert compare(figures[:1], figures[:1]).mean == 1
    assert len(list(list_table(figures))) == 2 + len(ELASTIC)
    assert "| 0.9 | flexible below malleable |" in write_page(figures)
