"""Drawn mutants are anchored by syntax, the tests of the rules notice them, and bad arguments are refused."""

import ast
import subprocess
import sys

import pytest

from tests.mutations.anchor import change, is_same
from tests.mutations.draw import draw, find_reason, list_modules, main
from tests.mutations.drawing import Drawn, list_changes
from tests.mutations.explained import EXPLAINED
from tests.mutations.mutant import Mutant, list_mutants
from tests.mutations.playing import MODULES, ROOT, find_file, read

MODULE = "scheduler.policy.scaling.budgets"
"""A short module in which every kind of change can be made."""


@pytest.fixture(scope="module")
def drawn() -> list[Drawn]:
    """Return all changes of a module. They take a second, which no collection of the tests should wait for."""
    return draw([MODULE], 1, 10_000)


def test_every_kind_of_change_is_drawn_and_each_makes_another_module(drawn: list[Drawn]) -> None:
    assert {each.kind for each in drawn} == {"comparison", "boolean", "arithmetic", "constant", "dropped call"}
    trees = [change(read(MODULE), each) for each in drawn]
    assert not any(is_same(tree, ast.parse(read(MODULE))) for tree in trees)
    assert len({ast.dump(tree) for tree in trees}) == len(drawn)


def test_a_default_that_the_function_has_twice_is_anchored_by_the_whole_function() -> None:
    module = "scheduler.policy.elastic.victim_search"
    changed = [each for each in draw([module], 1, 10_000) if each.old.startswith("def _walk(")]
    assert [each.function for each in changed] == ["_Candidates"]
    assert "to_the_end: bool=True" in changed[0].new


def test_a_bound_of_a_slice_is_anchored_by_an_expression_around_the_slice() -> None:
    changes = list_changes("scheduler.policy.quota.match_idle")
    bounds = [each.describe() for each in changes if isinstance(each.spot.path[-2], ast.Slice)]
    assert bounds
    assert all("[1:]" in each.old and "[2:]" in each.new for each in bounds)


def test_a_seed_draws_the_same_mutants_again_and_another_seed_others() -> None:
    assert draw([MODULE], 2, 5) == draw([MODULE], 2, 5) != draw([MODULE], 3, 5)


def test_mutants_of_several_packages_are_drawn_together() -> None:
    others = "scheduler.model.forecasts"
    assert {each.module for each in draw([MODULE, others, others], 1, 10_000)} == {MODULE, others}


def test_the_patch_shows_the_line_that_the_place_names(drawn: list[Drawn]) -> None:
    [each] = [each for each in drawn if each.kind == "dropped call"]
    line = read(MODULE).splitlines()[each.line - 1]
    assert each.place == f"scheduler/policy/scaling/budgets.py:{each.line}"
    assert each.patch.splitlines()[-2:] == [f"-{line}", f"+{line.partition('cycle.move_slot(')[0]}pass"]


def test_an_explained_mutant_is_known_whatever_surrounds_its_anchor(drawn: list[Drawn]) -> None:
    one = next(each for each in drawn if each.kind == "comparison")
    explained = Mutant(one.module, one.function, one.old, one.new, "the reason")
    assert find_reason(one, [explained]) == "the reason"
    assert find_reason(one, []) is None


def test_the_code_of_each_explained_mutant_is_there_once() -> None:
    for mutant in list_mutants(EXPLAINED):
        change(read(mutant.module), mutant)


def test_a_package_lists_its_modules_and_a_module_itself() -> None:
    assert MODULE in list_modules("scheduler.policy")
    assert list_modules(MODULE) == [MODULE]


def test_the_tests_of_the_rules_notice_a_mutant() -> None:
    """In a process of its own, because the changed modules must not be loaded yet."""
    anchors = [
        ("scheduler.policy.cycle.state", "CycleState.is_due", "self.now >= instant", "self.now > instant"),
        # A class whose last field needs a value, and the fields before it do not, cannot be made.
        (
            "scheduler.policy.quota.reclaim",
            "_Trial",
            "_limited: TrialLeases | None = field(init=False)",
            "_limited: TrialLeases | None = field()",
        ),
    ]
    code = (
        "from tests.mutations.anchor import Anchor\n"
        "from tests.mutations.playing import find_killer, play\n"
        f"print(*play(find_killer, [Anchor(*each) for each in {anchors!r}]), sep='\\n')"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    noticed, broken = run.stdout.splitlines()
    assert noticed.startswith("test_")
    assert broken == "import"


def test_the_files_of_the_quick_tests_exist() -> None:
    assert [module for module in MODULES if not find_file(module).is_file()] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", "1", "--count", "0"], "--count: expected a number of 1 or more, got 0"),
        (
            ["--seed", "1", "--tests", "tests/none"],
            "--tests: expected a folder or file such as tests/rules, got tests/",
        ),
        (["--seed", "1", "--package", "scheduler.none"], "--package: expected a package or module such as"),
    ],
)
def test_bad_arguments_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
