"""Break one rule at a time and see which test notices: `python -m tests.mutations.run [--write|--check]`.

The tests of MODULES are called as plain functions, in one process a mutant, on a package whose one module was changed
when it was imported. `--write` makes docs/mutations.md anew. `--check` prints it as it ought to be, where the test that
it names for a rule still notices: all others are tried only if that does not.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from types import CodeType, MappingProxyType, ModuleType
from typing import Any

import msgspec  # noqa: F401  so that the forks find it loaded
import pydantic  # noqa: F401  as above
import pytest  # noqa: F401  as above

import scheduler.model
from tests.mutations.mutant import Mutant
from tests.mutations.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "mutations.md"
POLICY = ROOT / "scheduler" / "policy"
OF_QUOTA = tuple(f"tests.scenarios.test_qscheduler_{name}" for name in ("cases", "notices", "faults"))
OF_FORECASTS = ("tests.policy.test_changes_of_accounts",)
OF_CORES = ("tests.scenarios.test_zoe_cores",)
OF_ROOMS = ("tests.policy.test_rooms",)
OF_YIELDING = ("tests.scenarios.test_zoe_quota",)
OWN = {
    "share": OF_CORES,
    **dict.fromkeys(("charging", "fanout", "preempt", "quota", "relevel"), OF_QUOTA),
    **dict.fromkeys(("changes_of_accounts", "forecast"), OF_FORECASTS),
    "filling": OF_ROOMS,
    **dict.fromkeys(("yielding", "rounds"), OF_YIELDING),
}
"""The tests that are tried first for some modules, and last for all others."""
SCENARIOS = (
    *("cases", "keeping_and_shrinking", "waiting", "interruption", "draining"),
    *("rebalance", "timeouts", "expiry", "failures", "failed_launches"),
    *("faults_not_to_copy", "wakes", "guard_and_profile", "found"),
    *("arvados_full", "arvados_refusals", "arvados_slots"),
    *("orchard_placement", "orchard_failures", "machine_lives", "launched_in_vain", "per_system"),
    *("zoe_queues", "zoe_figure_1", "zoe_elastic", "zoe_launches", "zoe_losses"),
)
MODULES = (
    *(f"tests.scenarios.test_{name}" for name in SCENARIOS),
    *(*OF_QUOTA, *OF_FORECASTS, *OF_CORES, *OF_ROOMS, *OF_YIELDING),
)
"""Where the tests are, in the order in which they are tried."""
RULELESS = (
    *("scheduler.ports", "scheduler.operations.repeating", "scheduler.simulation.scenario", "scheduler.view.memory"),
    *("scheduler.simulation.cloud", "scheduler.store.retention", "scheduler.store.world"),
)
"""What the tests need and what knows no rule, beside the nouns."""
WORKERS = 2
SURVIVED = "(nothing)"

HEAD = """# Mutations

Are the tests of the rules any good? Each row is a rule of `scheduler/policy/` that was turned into a wrong one,
and a test that notices: the first, when this page was made. `python -m tests.mutations.run` breaks them one by one,
a test keeps this page true, and `python -m tests.mutations.run --write` makes it anew.

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


def find_killer(mutant: Mutant | None, known: str = "") -> str:
    """A test that fails with this change (None: with none), in a process that has imported nothing yet.

    It is `known`, if that fails, else the first that does.
    """
    if mutant is not None:
        sys.meta_path.insert(0, _Finder(mutant))
    own = OWN.get(mutant.module, ()) if mutant is not None else ()
    modules = (*own, *(name for name in MODULES if name not in own))
    named = (each for each in _list_tests(find_homes(known, modules)) if each[0] == known)
    for name, test in chain(named, _list_tests(modules)):
        try:
            test()
        except Exception:  # noqa: BLE001  a broken rule may break anything
            return name
    return SURVIVED


def find_homes(test: str, modules: Sequence[str]) -> list[str]:
    """Those of the modules that have a test of this name, told from their text: an import is what takes time."""
    definition = f"def {test.partition('[')[0]}("
    return [name for name in modules if test and definition in _find_file(name).read_text(encoding="utf-8")]


def _find_file(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def _list_tests(modules: Sequence[str]) -> Iterator[tuple[str, Callable[[], object]]]:
    for name in modules:
        module = importlib.import_module(name)
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


def _import_the_ruleless() -> None:
    """What no mutant changes: the forks find it imported. It is most of their time."""
    for module in pkgutil.iter_modules(scheduler.model.__path__):
        importlib.import_module(f"scheduler.model.{module.name}")
    for name in RULELESS:
        importlib.import_module(name)


def find_killers(known: Mapping[Mutant, str] = MappingProxyType({})) -> list[tuple[Mutant, str]]:
    """Every mutant with a test that noticed it, the `known` one if it does; raises when tests fail without any change.

    To be called in a process of its own: it forks, and nothing that a mutant changes may be imported by then.
    """
    _import_the_ruleless()
    if "scheduler.policy" in sys.modules:
        raise RuntimeError("the rules are imported already, so they cannot be changed")
    context = multiprocessing.get_context("fork")
    with context.Pool(WORKERS, maxtasksperchild=1) as pool:
        calls = [(None, ""), *((mutant, known.get(mutant, "")) for mutant in MUTANTS)]
        found = pool.starmap(find_killer, calls, chunksize=1)
    if found[0] != SURVIVED:
        raise RuntimeError(f"{found[0]} fails without any change")
    return list(zip(MUTANTS, found[1:], strict=True))


def read_killers(page: str) -> dict[Mutant, str]:
    """What the page says of each mutant that it has a row of."""
    rows = {row.rpartition(" | ")[0]: row.rpartition(" | ")[2].strip("`| ") for row in page.splitlines()}
    return {each: rows[start] for each in MUTANTS if (start := _describe_change(each)) in rows}


def describe(found: list[tuple[Mutant, str]]) -> str:
    """The page."""
    rows = [f"{_describe_change(each)} | `{killer}` |" for each, killer in found]
    return HEAD + "\n".join(rows).replace("\n\n", "\n") + "\n"


def _describe_change(mutant: Mutant) -> str:
    return f"| `{mutant.module}.py` | {mutant.rule} | {_show(mutant.new)}"


def _show(code: str) -> str:
    text = " ⏎ ".join(line.strip() for line in code.strip().splitlines())
    return f"`{text}`" if text.strip("#") else "left out"


def main() -> int:
    """Print the page, or with --write put it where it belongs; 1 if a mutant survives."""
    known = read_killers(PAGE.read_text(encoding="utf-8")) if "--check" in sys.argv[1:] else {}
    found = find_killers(known)
    page = describe(found)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page, encoding="utf-8")
    print(page)  # noqa: T201
    return int(any(killer == SURVIVED for _, killer in found))


if __name__ == "__main__":
    sys.exit(main())
