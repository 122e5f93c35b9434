"""In generated scenarios the engine decides in each tick what an independent naive tick decides."""

import ast
import json
from functools import cache
from pathlib import Path

import msgspec
import pytest

from scheduler.model.waiting_codes import WAITING_CODES
from tests.generated import draw_some
from tests.reference_model import __main__, comparing
from tests.reference_model.__main__ import main
from tests.reference_model.comparing import Comparison, DifferenceError, compare
from tests.reference_model.packings import make_packing
from tests.reference_model.shrinking import shrink
from tests.reference_model.stories import make_scenario
from tests.reference_model.tick import Reported
from tests.rules.lifecycle.test_maintenance import CHANGES
from tests.rules.playing import Document, a_scenario, submit, tick
from tests.rules.watching import Seen, watch

COVERING = (113, 132, 136, 140, 145, 158, 167, 197, 211, 215, 244, 249)
"""Scenarios that reach every rule together. Each run of the tests plays them, and others."""
SEEDS = sorted({*COVERING, *draw_some(range(101, 251), 50)})
PARTS = 5
REACHED = {
    *(
        "assign",
        "cores",
        "expire ttl",
        "expire limit",
        "restart restart_due",
        "launch demand",
        "launch minimum",
        "launch warm",
    ),
    *("fail slot_gone", "fail slot_offline", "fail slot_interrupted", "fail unconfirmed"),
    *("requeue slot_interrupted", "requeue slot_draining", "requeue unconfirmed"),
    *("drain idle", "drain interrupted", "drain at_quota", "drain unconfigured", "drain unhealthy"),
    *("drain unclean", "drain used_up", "drain rebalance", "drain over_budget"),
    *("drain aged", "drain drifted", "drain consolidated"),
    *("terminate drained", "terminate timeout", "terminate interrupted"),
    *("reset cooled_down", "reset drained"),
    *("launch stopped", "start demand", "stop booted", "terminate surplus", "terminate at_quota"),
    *(f"waits {code}" for code in WAITING_CODES if code not in {"no_quota", "account_limit"}),
}
"""What these scenarios have to contain. Two codes are missing, because the queue `quota` alone reports them, which has
models of its own (`tests/reference_model/quota`).
"""


@cache
def compare_part(part: int) -> Comparison:
    """A part of the scenarios, played and compared once for all tests."""
    found = Comparison()
    for seed in SEEDS[part::PARTS]:
        compare(make_scenario(seed), found)
    return found


@pytest.mark.parametrize("part", range(PARTS))
def test_every_tick_of_the_engine_decides_what_the_naive_tick_decides(part: int) -> None:
    """For more of them: `python -m tests.reference_model`, which also keeps the smallest scenario that differs."""
    assert compare_part(part).ticks > 50


def test_the_scenarios_reach_every_rule() -> None:
    reached = {kind for part in range(PARTS) for kind in compare_part(part).reached}
    assert REACHED - reached == set()


def test_gangs_of_different_parts_are_placed_as_the_naive_tick_places_them() -> None:
    found = Comparison()
    # Number 10 reaches all that follows.
    for seed in {10, *draw_some(range(40), 14)}:
        compare(make_packing(seed), found)
    assert {"assign", "launch demand", "waits booting", "waits gang_incomplete", "waits at_max_slots"} <= {
        *found.reached
    }


def test_scheduled_changes_of_machines_are_decided_as_the_naive_tick_decides_them() -> None:
    """No generated scenario has them: another action would make other scenarios of all seeds."""
    found = Comparison()
    for document, _, _ in CHANGES.values():
        compare(document, found)
    assert {"terminate maintenance", "terminate drained", "launch minimum"} <= {*found.reached}


def test_a_seed_makes_the_same_scenario_each_time() -> None:
    assert json.dumps(make_scenario(7)) == json.dumps(make_scenario(7))
    assert make_scenario(7) != make_scenario(8)


def test_the_naive_tick_imports_nothing_of_the_engine() -> None:
    """Of the product it imports the types of rows and rules; `comparing` alone uses the engine."""
    folder = Path(__file__).parent
    for name in (
        "picture",
        "healing",
        "fitting",
        "gangs",
        "launching",
        "placing",
        "keeping",
        "replacing",
        "starting",
        "stopping",
        "tick",
        "expiring",
        "holding",
        "budgeting",
    ):
        nodes = ast.walk(ast.parse((folder / f"{name}.py").read_text(encoding="utf-8")))
        modules = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        known = ("scheduler.model.", "tests.reference_model.")
        assert {each for each in modules if each.partition(".")[0] in {"scheduler", "tests"}} == {
            each for each in modules if each.startswith(known)
        }


TWO_WISHES = a_scenario(submit(0, "r1"), submit(1, "r2"), tick(2), tick(3))


@pytest.mark.parametrize("field", ["decisions", "waiting"])
def test_a_decision_of_one_tick_alone_is_a_difference(field: str) -> None:
    def look(seen: Seen) -> None:
        seen.plan = msgspec.structs.replace(seen.plan, **{field: ()})
        Comparison().look(seen)

    with pytest.raises(DifferenceError, match="at 2") as raised:
        watch(TWO_WISHES, look)
    assert raised.value.naive.decisions == ["launch linux-1 - demand", "launch linux-2 - demand"]
    assert raised.value.naive.waiting == ["r1 booting", "r2 booting"]


def test_the_smallest_scenario_that_shows_a_difference_is_found() -> None:
    def shows(document: Document) -> bool:
        return any(each.get("submit", [{}])[0:1] == [{"id": "r2"}] for each in document.get("timeline", []))

    full = {"timeline": [{"at": 0, "tick": True}, {"at": 1, "submit": [{"id": "r2"}, {"id": "r3"}]}], "slots": [{}]}
    assert shrink(full, shows) == {"timeline": [{"submit": [{"id": "r2"}]}]}


def test_the_command_prints_what_it_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", "2", "--first", "5"]) == 0
    first, reached = capsys.readouterr().out.splitlines()
    assert first.endswith("ticks compared, 0 scenarios refused, 0 differences")
    assert "assign" in reached


def test_the_command_keeps_a_difference_as_a_scenario_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(__main__, "make_scenario", lambda _: TWO_WISHES)
    monkeypatch.setattr(comparing, "tick", lambda *_: Reported([], []))
    assert main(["--runs", "1", "--first", "7", "--keep", str(tmp_path)]) == 1
    path = tmp_path / "difference-scenario-7.json"
    assert capsys.readouterr().out.startswith(f"{path}: at ")
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert [line.partition(": ")[0].strip() for line in kept["differs"][1:]] == ["engine", "naive", "committed"]
    assert kept["ticks"].keys() == {kept["differs"][0].removeprefix("at ")}
