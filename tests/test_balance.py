"""The slowest pieces of a run start first, each in one process."""

import ast
from pathlib import Path

import pytest

from tests.balance import E2E, OWN_STACKS, ROOT, find_piece, load_durations, order, save_durations

PLUGINS = ("-p", "xdist.plugin", "-p", "tests.balance", "-n2", "--dist=loadfile")


def test_tests_that_share_the_stack_are_one_piece_and_every_other_file_is_one() -> None:
    assert find_piece("tests/system/test_stack.py::test_it[a::b]") == find_piece("tests/system/test_doctor.py::test_it")
    assert find_piece("tests/unit/test_logs.py::test_it[a::b]") == "tests/unit/test_logs.py"


def shares_the_stack(file: Path) -> bool:
    """Whether tests or fixtures of this file use the fixture `stack`, and the file defines none."""
    nodes = [each for each in ast.walk(ast.parse(file.read_text())) if isinstance(each, ast.FunctionDef)]
    decorated = [each for each in nodes if any("fixture" in ast.unparse(line) for line in each.decorator_list)]
    used = {argument.arg for each in nodes if each.name.startswith("test_") for argument in each.args.args}
    used |= {argument.arg for each in decorated for argument in each.args.args}
    return "stack" in used - {each.name for each in decorated}


def test_files_of_the_folder_with_stacks_of_their_own_are_pieces() -> None:
    files = sorted((ROOT / E2E).glob("test_*.py"))
    alone = {f"{E2E}/{each.name}" for each in files if not shares_the_stack(each)}
    assert alone == OWN_STACKS
    assert {find_piece(f"{each}::test_it") for each in alone} == alone


def test_unknown_pieces_go_first_as_they_come_then_the_longest_ones() -> None:
    new, newer = "tests/client/test_b.py::test_z", "tests/client/test_a.py::test_a"
    stack, plans, short = (
        "tests/system/test_stack.py::test_it",
        "tests/rules/test_plans.py::test_it",
        "tests/c.py::test",
    )
    durations = {"tests/system": 200.0, "tests/rules/test_plans.py": 20.0, "tests/c.py": 0.1}
    assert order([short, new, plans, newer, stack], durations) == [new, newer, stack, plans, short]


def test_without_measured_durations_every_piece_is_unknown(tmp_path: Path) -> None:
    nodeids = ["tests/b.py::test", "tests/a.py::test"]
    assert order(nodeids, load_durations(tmp_path / "durations.json")) == nodeids


def test_a_part_that_is_measured_again_leaves_the_others_and_removed_files_go(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()
    path = tmp_path / "durations.json"
    save_durations({"a.py": 1.04, "b.py": 2.0, "removed.py": 3.0}, path, tmp_path)
    save_durations({"b.py": 5.0}, path, tmp_path)
    assert load_durations(path) == {"a.py": 1.0, "b.py": 5.0}


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for path in ("a/test_many", "system/test_one", "system/test_two"):
        file = pytester.path / "tests" / f"{path}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"def test_{number}(): pass\n" for number in range(4)))
    return pytester


def test_xdist_starts_the_pieces_in_this_order(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess(*PLUGINS, "-v")
    result.assert_outcomes(passed=12)
    passed = [line.split() for line in result.outlines if " PASSED " in line]
    homes = {words[-1]: words[0] for words in passed}
    assert homes["tests/system/test_one.py::test_0"] == homes["tests/system/test_two.py::test_0"]
    assert homes["tests/system/test_one.py::test_0"] != homes["tests/a/test_many.py::test_0"]


@pytest.mark.parametrize(("option", "given", "started"), [("auto", None, 3), ("auto", "1", 1), ("1", None, 1)])
def test_auto_starts_one_process_more_than_there_are_cores(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, option: str, given: str | None, started: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 1})
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    if given is not None:
        monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", given)
    plugins = [each for each in PLUGINS if each != "-n2"]
    result = project.runpytest_inprocess(*plugins, f"--numprocesses={option}")
    result.assert_outcomes(passed=12)
    assert [line.split("/")[0] for line in result.outlines if line.startswith("created: ")] == [f"created: {started}"]


@pytest.mark.parametrize(
    ("failing", "measured"), [("", {"tests/a/test_many.py", "tests/system"}), ("assert False", {"tests/system"})]
)
def test_a_run_writes_what_the_pieces_took_whose_tests_passed(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, failing: str, measured: set[str]
) -> None:
    path = project.path / "durations.json"
    monkeypatch.setattr("tests.balance.save_durations.__defaults__", (path, project.path))
    (project.path / "tests" / "a" / "test_many.py").write_text(f"def test_0():\n    pass\n    {failing}\n")
    project.runpytest_inprocess(*PLUGINS, "--write-durations")
    assert load_durations(path).keys() == measured
