"""Break one rule at a time and see which test notices: `python -m tests.mutations.run [--write]`.

The tests of `tests/scenarios` are called as plain functions, in one process a mutant, on a package whose one
module was changed when it was imported. `--write` makes docs/mutations.md anew.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import msgspec  # noqa: F401  so that the forks find it loaded
import pydantic  # noqa: F401  as above
import pytest  # noqa: F401  as above

import scheduler.model
from tests.mutations.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "mutations.md"
POLICY = ROOT / "scheduler" / "policy"
MODULES = (
    *("test_cases", "test_keeping_and_shrinking", "test_waiting", "test_interruption", "test_draining"),
    *("test_rebalance", "test_timeouts", "test_expiry", "test_failures", "test_failed_launches"),
    *("test_faults_not_to_copy", "test_wakes", "test_guard_and_profile", "test_found"),
    *("test_arvados_full", "test_arvados_refusals", "test_arvados_slots"),
    *("test_orchard_placement", "test_orchard_failures", "test_machine_lives", "test_per_system"),
    *("test_zoe_queues", "test_zoe_elastic", "test_zoe_losses"),
)
"""Where the tests are, in the order in which they are tried."""
OF_QUOTA = ("test_qscheduler_cases", "test_qscheduler_notices", "test_qscheduler_faults")
QUOTA = frozenset({"charging", "fanout", "preempt", "quota", "relevel"})
"""The rules of quota, and their own tests, which are tried first for them and last for all others."""
WORKERS = 2
SURVIVED = "(nothing)"

HEAD = """# Mutations

Are the tests of the rules any good? Each row is a rule of `scheduler/policy/` that was turned into a wrong one,
and the first test of `tests/scenarios/` that noticed. `python -m tests.mutations.run` breaks them one by one, a test
keeps this page true, and `python -m tests.mutations.run --write` makes it anew.

| file | the rule that is broken | changed to | noticed by |
|---|---|---|---|
"""


class _Patched(importlib.machinery.SourceFileLoader):
    """Loads a module from its source with one change, past every cache."""

    def __init__(self, name: str, path: str, mutant: Mutant) -> None:
        super().__init__(name, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType:
        source = Path(self.path).read_text(encoding="utf-8")
        return compile(change(source, self._mutant), self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the one module that is to be changed."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant, self._name = mutant, f"scheduler.policy.{mutant.module}"

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        file = str(POLICY / f"{self._mutant.module}.py")
        return importlib.util.spec_from_loader(fullname, _Patched(fullname, file, self._mutant))


def change(source: str, mutant: Mutant) -> str:
    """The source with the mutant's change; raises ValueError unless its text stands there exactly once."""
    if source.count(mutant.old) != 1:
        raise ValueError(f"{mutant.module}.py: {source.count(mutant.old)} times instead of once: {mutant.old!r}")
    return source.replace(mutant.old, mutant.new)


def find_killer(mutant: Mutant | None) -> str:
    """The first test that fails with this change (None: with none), in a process that has imported nothing yet."""
    if mutant is not None:
        sys.meta_path.insert(0, _Finder(mutant))
    is_of_quota = mutant is not None and mutant.module in QUOTA
    for name, test in _list_tests((*OF_QUOTA, *MODULES) if is_of_quota else (*MODULES, *OF_QUOTA)):
        try:
            test()
        except Exception:  # noqa: BLE001  a broken rule may break anything
            return name
    return SURVIVED


def _list_tests(modules: Sequence[str]) -> Iterator[tuple[str, Callable[[], object]]]:
    for name in modules:
        module = importlib.import_module(f"tests.scenarios.{name}")
        for key, function in vars(module).items():
            if key.startswith("test_") and callable(function):
                yield from _list_calls(function)


def _list_calls(function: Callable[..., object]) -> Iterator[tuple[str, Callable[[], object]]]:
    """The calls that pytest would make of a test, parameters and all."""
    tables = [_list_rows(mark.args) for mark in getattr(function, "pytestmark", ()) if mark.name == "parametrize"]
    for rows in product(*tables):
        arguments = {name: value for row in rows for name, value in row.items()}
        label = ", ".join(str(value) for value in arguments.values() if isinstance(value, str | float | int))
        name = f"{function.__name__}[{label}]" if label else function.__name__
        yield name, lambda arguments=arguments: function(**arguments)  # type: ignore[misc]


def _list_rows(arguments: tuple[Any, ...]) -> list[dict[str, Any]]:
    names, values = arguments[0], arguments[1]
    if isinstance(names, str):
        return [{names: value} for value in values]
    return [dict(zip(names, row, strict=True)) for row in values]


def _import_nouns() -> None:
    """What no mutant changes, and knows no rule: the forks find it imported. It is a third of their time."""
    for module in pkgutil.iter_modules(scheduler.model.__path__):
        importlib.import_module(f"scheduler.model.{module.name}")


def find_killers() -> list[tuple[Mutant, str]]:
    """Every mutant with the test that noticed it; raises when the tests fail without any change.

    To be called in a process of its own: it forks, and nothing that a mutant changes may be imported by then.
    """
    _import_nouns()
    if "scheduler.policy" in sys.modules:
        raise RuntimeError("the rules are imported already, so they cannot be changed")
    context = multiprocessing.get_context("fork")
    with context.Pool(WORKERS, maxtasksperchild=1) as pool:
        found = pool.map(find_killer, [None, *MUTANTS], chunksize=1)
    if found[0] != SURVIVED:
        raise RuntimeError(f"{found[0]} fails without any change")
    return list(zip(MUTANTS, found[1:], strict=True))


def describe(found: list[tuple[Mutant, str]]) -> str:
    """The page."""
    rows = [f"| `{each.module}.py` | {each.rule} | {_show(each.new)} | `{killer}` |" for each, killer in found]
    return HEAD + "\n".join(rows).replace("\n\n", "\n") + "\n"


def _show(code: str) -> str:
    text = " ⏎ ".join(line.strip() for line in code.strip().splitlines())
    return f"`{text}`" if text.strip("#") else "left out"


def main() -> int:
    """Print the page, or with --write put it where it belongs; 1 if a mutant survives."""
    found = find_killers()
    page = describe(found)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page, encoding="utf-8")
    print(page)  # noqa: T201
    return int(any(killer == SURVIVED for _, killer in found))


if __name__ == "__main__":
    sys.exit(main())
