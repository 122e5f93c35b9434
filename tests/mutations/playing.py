"""Play a mutant: call the tests of the rules on a package of which one module was changed at its import.

The tests of MODULES are called as plain functions, in one process a mutant. That is much faster than pytest.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

import msgspec  # noqa: F401  so that the forks find it loaded
import pytest  # noqa: F401  as above

import scheduler.model
from tests.mutations.anchor import Anchor, change

ROOT: Final = Path(__file__).parents[2]
MODULES: Final = (
    "tests.rules.test_cases",
    "tests.rules.scaling.test_warm_pool_and_scale_in",
    "tests.rules.scaling.test_stopped_tier",
    "tests.rules.scaling.test_loops",
    "tests.rules.queueing.test_waiting",
    "tests.rules.lifecycle.test_interruption",
    "tests.rules.lifecycle.test_draining",
    "tests.rules.lifecycle.test_rebalance",
    "tests.rules.lifecycle.test_maintenance",
    "tests.rules.lifecycle.test_timeouts",
    "tests.rules.lifecycle.test_expiry",
    "tests.rules.lifecycle.test_failures",
    "tests.rules.scaling.test_failed_launches",
    "tests.rules.test_faults_not_to_copy",
    "tests.rules.lifecycle.test_wakes",
    "tests.rules.queueing.test_guard_and_profile",
    "tests.rules.lifecycle.test_found",
    "tests.rules.scaling.test_arvados_full",
    "tests.rules.scaling.test_arvados_refusals",
    "tests.rules.scaling.test_quota_classes",
    "tests.rules.lifecycle.test_arvados_slots",
    "tests.rules.placement.test_orchard_placement",
    "tests.rules.lifecycle.test_orchard_failures",
    "tests.rules.lifecycle.test_machine_lives",
    "tests.rules.scaling.test_launched_in_vain",
    "tests.rules.scaling.test_per_system",
    "tests.rules.queueing.test_zoe_queues",
    "tests.rules.elastic.test_zoe_figure_1",
    "tests.rules.elastic.test_zoe_elastic",
    "tests.rules.elastic.test_zoe_rules",
    "tests.rules.scaling.test_zoe_launches",
    "tests.rules.elastic.test_zoe_losses",
    "tests.rules.quota.test_qscheduler_cases",
    "tests.rules.quota.test_qscheduler_notices",
    "tests.rules.quota.test_qscheduler_faults",
    "tests.rules.explain.test_changes_of_accounts",
    "tests.rules.placement.test_cpu_bursting",
    "tests.rules.capacity.test_slot_index",
    "tests.rules.quota.test_zoe_quota",
    "tests.rules.capacity.test_fits",
    "tests.rules.capacity.test_slot_info",
    "tests.rules.capacity.test_cached_slots",
    "tests.rules.queueing.test_work_budget",
    "tests.rules.queueing.test_kept_plans",
    "tests.rules.queueing.test_ignored_fields",
    "tests.rules.placement.test_backfill",
    "tests.rules.scaling.test_withheld_launches",
    "tests.rules.scaling.test_market_policy",
    "tests.rules.elastic.test_cascade",
    "tests.rules.quota.test_payments_and_victims",
    "tests.rules.quota.test_quota_rules",
    "tests.rules.quota.test_quota_claims",
    "tests.rules.quota.test_quota_shared",
    "tests.rules.test_kept_cycle",
    "tests.rules.test_kept_queue",
    "tests.rules.queueing.test_guard_and_reclaims",
    "tests.rules.lifecycle.test_earlier_notice",
    "tests.rules.quota.test_gangs_on_idle_slots",
    "tests.rules.elastic.test_named_components",
    "tests.rules.capacity.test_gang",
    "tests.rules.quota.test_gangs_that_preempt",
    "tests.rules.quota.test_lease_cost",
    "tests.rules.quota.test_reclaims",
    "tests.rules.queueing.test_planned_start",
    "tests.rules.capacity.test_requests",
    "tests.rules.scaling.test_replacement",
    "tests.rules.elastic.test_victim_search",
    "tests.unit.test_overload",
    "tests.rules.test_lost_plans",
)
"""Where the tests are, in the order in which they are tried. See `find_killer`."""
RULELESS: Final = (
    *("scheduler.ports", "scheduler.operations.unit_of_work", "scheduler.simulation.scenario", "scheduler.view.memory"),
    *("scheduler.simulation.cloud", "scheduler.store.shared_rules", "scheduler.store.memory_transaction"),
)
"""What the tests need and what imports no rule, beside the model: the forks find it imported."""
PROCESSES: Final = 2
SURVIVED: Final = "(nothing)"


class _Patched(importlib.machinery.SourceFileLoader):
    """Loads a module from its source with one change, past every cache."""

    def __init__(self, anchor: Anchor) -> None:
        super().__init__(anchor.module, str(find_file(anchor.module)))
        self._anchor = anchor

    def get_code(self, fullname: str) -> CodeType:
        return compile(change(read(self._anchor.module), self._anchor), self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the one module that is to be changed."""

    def __init__(self, anchor: Anchor) -> None:
        self._anchor = anchor

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._anchor.module:
            return None
        return importlib.util.spec_from_loader(fullname, _Patched(self._anchor))


_FORGOTTEN: Final = ("scheduler.", "leasehold.", "tests.")
_KEPT: Final = "tests.mutations."


def find_file(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def read(module: str) -> str:
    return find_file(module).read_text(encoding="utf-8")


def install(anchor: Anchor) -> None:
    """Change the module at its import, which is still to come. If it was imported, all modules of the project are
    forgotten, because they have its old names: call this in a process that plays nothing else.
    """
    if anchor.module in sys.modules:
        for name in [each for each in sys.modules if each.startswith(_FORGOTTEN) and not each.startswith(_KEPT)]:
            del sys.modules[name]
    sys.meta_path.insert(0, _Finder(anchor))


def find_killer(anchor: Anchor | None) -> str:
    """Return the first test that fails with this change (None: without any); `import` if tests cannot be imported. The
    tests of the package in which the change is come first.
    """
    modules: Sequence[str] = MODULES
    if anchor is not None:
        install(anchor)
        package = anchor.module.split(".")[2:3]
        modules = sorted(MODULES, key=lambda name: name.split(".")[2:3] != package)
    for module in modules:
        try:
            tests = list(_list_tests(module))
        except Exception:
            if anchor is None:
                raise
            return "import"
        for name, test in tests:
            try:
                test()
            except Exception:  # noqa: BLE001  a broken rule may break anything
                return name
    return SURVIVED


def _list_tests(module: str) -> Iterator[tuple[str, Callable[[], object]]]:
    for key, function in vars(importlib.import_module(module)).items():
        if key.startswith("test_") and callable(function):
            yield from _list_calls(function)


def _list_calls(function: Callable[..., object]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the calls that pytest would make of a test, parameters and all."""
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


def play(find: Callable[[Anchor | None], str], anchors: Iterable[Anchor | None]) -> Iterator[str]:
    """Call `find` for each anchor in a fork of its own, and yield the results in the order of the anchors. To be called
    in a process that has imported no rule yet.
    """
    for module in pkgutil.iter_modules(scheduler.model.__path__):
        importlib.import_module(f"scheduler.model.{module.name}")
    for name in RULELESS:
        importlib.import_module(name)
    context = multiprocessing.get_context("fork")
    with context.Pool(PROCESSES, maxtasksperchild=1) as pool:
        yield from pool.imap(find, anchors)
