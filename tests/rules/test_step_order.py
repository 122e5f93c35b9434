"""mypy refuses steps of `plan()` in another order, unless they do not depend on each other."""

import ast
from itertools import pairwise
from pathlib import Path

from mypy import api

import scheduler.policy.plan

ROOT = Path(__file__).parents[2]
INDEPENDENT = {("order", "LaunchLimits")}


def name_call(statement: ast.stmt) -> str:
    assert isinstance(statement, ast.Assign)
    assert isinstance(statement.value, ast.Call)
    return ast.unparse(statement.value.func)


def test_mypy_refuses_two_steps_in_the_wrong_order(tmp_path: Path) -> None:
    module = ast.parse(Path(scheduler.policy.plan.__file__).read_text(encoding="utf-8"))
    plan = next(each for each in module.body if isinstance(each, ast.FunctionDef))
    steps = [number for number, each in enumerate(plan.body) if isinstance(each, ast.Assign) and number > 4]
    swapped = {}
    for first, second in pairwise(steps[1:]):
        body = list(plan.body)
        body[first], body[second] = body[second], body[first]
        pair = name_call(body[second]), name_call(body[first])
        copy = ast.FunctionDef(f"plan_{first}", plan.args, body, [], plan.returns)
        swapped[pair] = (copy.name, ast.unparse(ast.fix_missing_locations(copy)))
    others = [ast.unparse(each) for each in module.body if each is not plan]
    text = "\n".join([*others, *(source for _, source in swapped.values())])
    (tmp_path / "swapped.py").write_text(text)
    found, _, _ = api.run(
        [
            str(tmp_path / "swapped.py"),
            f"--config-file={ROOT / 'pyproject.toml'}",
            f"--cache-dir={tmp_path / 'cache'}",
        ]
    )
    lines = [int(each.split(":")[1]) for each in found.splitlines() if ": error:" in each]
    starts = {name: text[: text.index(f"def {name}(")].count("\n") + 1 for name, _ in swapped.values()}
    refused = {max((start, name) for name, start in starts.items() if start <= line)[1] for line in lines}
    accepted = {pair for pair, (name, _) in swapped.items() if name not in refused}
    assert len(swapped) > 10
    assert accepted == INDEPENDENT, found
