"""The long pieces of a run go first, each in one process."""

from pathlib import Path

import pytest

from tests.balance import LONG, find_piece, order

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("piece", LONG)
def test_what_is_listed_as_long_exists(piece: str) -> None:
    assert (ROOT / piece).exists()


def test_all_that_shares_the_stack_is_one_piece_and_every_other_file_is_one() -> None:
    assert find_piece("tests/e2e/test_stack.py::test_it[a::b]") == find_piece("tests/e2e/test_doctor.py::test_it")
    assert find_piece("tests/unit/test_logs.py::test_it[a::b]") == "tests/unit/test_logs.py"


def test_the_long_ones_go_first_and_nobody_else_changes_places() -> None:
    short, shorter = "tests/client/test_b.py::test_z", "tests/client/test_b.py::test_a"
    stack, plans = "tests/e2e/test_stack.py::test_it", "tests/policy/test_plans.py::test_it"
    assert order([short, plans, shorter, stack]) == [stack, plans, short, shorter]


def test_xdist_hands_them_out_like_that(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for path in ("a/test_many", "e2e/test_one", "e2e/test_two"):
        file = pytester.path / "tests" / f"{path}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"def test_{number}(): pass\n" for number in range(4)))
    result = pytester.runpytest_inprocess("-p", "xdist.plugin", "-p", "tests.balance", "-n2", "--dist=loadfile", "-v")
    result.assert_outcomes(passed=12)
    passed = [line.split() for line in result.outlines if " PASSED " in line]
    homes = {words[-1]: words[0] for words in passed}
    assert homes["tests/e2e/test_one.py::test_0"] == homes["tests/e2e/test_two.py::test_0"]
    assert homes["tests/e2e/test_one.py::test_0"] != homes["tests/a/test_many.py::test_0"]
