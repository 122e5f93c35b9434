"""The summary of a demo, as a table for people and as JSON for machines."""

import io
import json

import pytest
from rich.console import Console

from leasehold.demo.run import Summary, report
from scheduler.model.costs import Cost
from scheduler.operations.costs import add_up


def a_summary(*costs: Cost) -> Summary:
    """Return the summary of a demo whose machines cost this."""
    return Summary(
        jobs=2,
        served=2,
        speed=10.0,
        seconds=5.0,
        wait_p50=0.1,
        wait_p95=0.2,
        wait_max=0.3,
        launches=1,
        machines_by_type={"m6i.large": 1},
        ec2_calls={"CreateFleet": 1},
        let_go=1,
        left=0,
        costs=add_up(costs),
        differences=(),
        errors=(),
    )


COSTS = (
    Cost(hour=0, pool="linux", offering="a", account="", kind="used", dollars=0.03, seconds=90, unpriced=0),
    Cost(hour=0, pool="linux", offering="a", account="", kind="booting", dollars=0.01, seconds=30, unpriced=0),
)


def test_the_table_has_what_the_machines_cost_and_what_they_did() -> None:
    out = io.StringIO()
    report(a_summary(*COSTS), Console(file=out, width=120))
    assert "$0.0400 for 120 s of machines (used 75%, booting 25%)" in out.getvalue()


def test_without_a_machine_nothing_was_paid() -> None:
    out = io.StringIO()
    report(a_summary(), Console(file=out, width=120))
    assert "$0.0000 for 0 s of machines" in out.getvalue()


def test_json_has_the_costs_by_use(capsys: pytest.CaptureFixture[str]) -> None:
    report(a_summary(*COSTS), Console(file=io.StringIO()), as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert (printed["good"], printed["costs"]["dollars_by_kind"]["booting"]) == (True, 0.01)
