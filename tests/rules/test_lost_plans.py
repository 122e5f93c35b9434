"""A plan of which the commit wrote nothing is made again: what it left behind in the cache changes no decision."""

import json
from typing import Any
from unittest.mock import patch

import pytest

from scheduler.model.decisions import Plan
from scheduler.model.rules import Rules
from scheduler.model.view import ROW_TYPES, View
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from tests.rules.elastic.test_zoe_elastic import CASES as ELASTIC
from tests.rules.playing import Document, play_out
from tests.rules.quota.test_zoe_quota import CASES as QUOTA
from tests.scenarios.files import FOLDER

# Tracing triples their time, and the lines that they run are those of the scenarios.
pytestmark = pytest.mark.no_cover

FILES = sorted(FOLDER.glob("*.json"))


def _plan_again(view: View, rules: Rules, now: float, cache: PlanCache) -> Plan:
    with patch.object(cache, "_least_kept", 0):
        first = plan(view, rules, now, cache)
        cache.prepare()
        again = plan(view, rules, now, cache)
        cache.prepare()
        later = plan(view, rules, now + 1, cache)
    rows: list[Any] = [row for kind in ROW_TYPES for row in view.rows(kind).values()]
    assert first == again == plan(View(rows), rules, now)
    assert later == plan(View(rows), rules, now + 1)
    return again


def _play(*scenarios: Document) -> None:
    with patch("scheduler.operations.tick.tick.plan", _plan_again):
        for scenario in scenarios:
            play_out(scenario)


@pytest.mark.parametrize("queue", ["fifo", "quota"])
def test_each_tick_of_a_scenario_file_plans_again_what_was_not_written(queue: str) -> None:
    scenarios = [json.loads(path.read_text(encoding="utf-8"))["scenario"] for path in FILES]
    is_quota = [each["config"].get("scheduler", {}).get("queue") == "quota" for each in scenarios]
    _play(*(each for each, by_quota in zip(scenarios, is_quota, strict=True) if by_quota == (queue == "quota")))


def test_each_tick_of_the_cases_with_elastic_instances_plans_again_what_was_not_written() -> None:
    _play(*(case[0] for cases in (ELASTIC, QUOTA) for case in cases.values()))
