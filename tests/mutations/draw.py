"""Draw mutants at random and play each against the tests of the rules that start no process.

    python -m tests.mutations.draw --seed 1 --count 20
    python -m tests.mutations.draw --seed 7 --count 5 --package scheduler.policy.elastic.cascade
    python -m tests.mutations.draw --seed 7 --package scheduler.foresight --package scheduler.model.run_times \
        --tests tests/rules/foresight --tests tests/unit/test_run_times.py

Kinds: comparison, boolean, arithmetic, constant, dropped call. A mutant is noticed by the first test that fails. A
survivor is printed with its file, its line and its patch, and as an entry for `explained.py`. It needs a test, or a
reason there why nothing changes. Status 1 if a survivor has no reason, 2 for bad arguments.
"""

import argparse
import ast
import os
import pkgutil
import random
import resource
import signal
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import hypothesis
import pytest

from tests.balance import find_piece, load_durations
from tests.mutations.anchor import Anchor, AnchorError, change
from tests.mutations.drawing import Drawn, list_changes
from tests.mutations.explained import EXPLAINED
from tests.mutations.mutant import Mutant, list_mutants
from tests.mutations.playing import ROOT, SURVIVED, find_file, find_killer, install, play, read

PACKAGE: Final = "scheduler.policy"
PATHS: Final = ("tests/rules", "tests/reference_model", "tests/traces", "tests/unit/test_overload.py")
"""What pytest runs on a mutant that the plain calls of `find_killer` do not notice, if no other tests are named."""
MOST_BYTES: Final = 4 << 30
"""The address space of a process that plays a mutant: an endless loop may not take the memory of the machine."""
MOST_SECONDS: Final = 120
"""The CPU time of the plain calls, many times what they need: a mutant with an endless loop is noticed by it."""


class _FirstFailure:
    """Runs the shortest files first, and keeps the id of the first test that fails."""

    test = SURVIVED

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        durations = load_durations()
        items.sort(key=lambda item: durations.get(find_piece(item.nodeid), 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.test == SURVIVED:
            self.test = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and self.test == SURVIVED:
            self.test = report.nodeid


def find_quick_killer(anchor: Anchor | None) -> str:
    """See `find_killer`, with bounded memory and time."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    signal.signal(signal.SIGVTALRM, _raise_timeout)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
    return find_killer(anchor)


def _raise_timeout(*_: object) -> None:
    raise TimeoutError(f"more than {MOST_SECONDS} seconds")


def find_thorough_killer(anchor: Anchor | None, paths: Sequence[str] = PATHS) -> str:
    """Return the first test of `paths` that fails under pytest; examples are neither shrunk nor kept."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    if anchor is not None:
        install(anchor)
    os.chdir(ROOT)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutants", database=None, phases=phases)
    failure = _FirstFailure()
    options = ["-x", "-q", "--hypothesis-profile=mutants", "-p", "no:cacheprovider", "-o", "timeout=600"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported before pytest starts
    status = pytest.main([*options, *paths], plugins=[failure])
    return failure.test if failure.test != SURVIVED or status == pytest.ExitCode.OK else f"pytest: {status!r}"


def list_modules(package: str) -> list[str]:
    """Return the modules of a package, or the module itself; nothing if there is none."""
    folder = ROOT.joinpath(*package.split("."))
    if not folder.is_dir():
        return [package] if find_file(package).is_file() else []
    found = pkgutil.walk_packages([str(folder)], f"{package}.")
    return [each.name for each in found if not each.ispkg]


def draw(packages: Sequence[str], seed: int, count: int) -> list[Drawn]:
    """Return different changes of the modules of some packages, all of them if there are fewer."""
    modules = dict.fromkeys(module for package in packages for module in list_modules(package))
    changes = [each for module in modules for each in list_changes(module)]
    return [each.describe() for each in random.Random(seed).sample(changes, min(count, len(changes)))]


def find_reason(drawn: Drawn, explained: Iterable[Mutant]) -> str | None:
    """Return why the mutant changes nothing, if an explained one makes the same change."""
    source = read(drawn.module)
    wanted = ast.dump(change(source, drawn))
    same = (each for each in explained if (each.module, each.function) == (drawn.module, drawn.function))
    return next((each.reason for each in same if ast.dump(change(source, each)) == wanted), None)


def play_drawn(drawn: Sequence[Drawn], tests: Sequence[str] = ()) -> int:
    """Report which test notices each mutant, quick tests first; return the number of survivors. `tests`: the paths to
    run in place of the quick tests and PATHS.
    """
    left = list(drawn) if tests else _play_quick(drawn)
    find = partial(find_thorough_killer, paths=tests or PATHS)
    whole, survived = play(find, [None, *left] if tests else left), 0
    if tests:
        _require_success(next(whole))
    for each, killer in zip(left, whole, strict=True):
        _report(each, killer)
        survived += killer == SURVIVED
    return survived


def _play_quick(drawn: Sequence[Drawn]) -> list[Drawn]:
    """Report what the quick tests notice, and return the others."""
    quick, left = play(find_quick_killer, [None, *drawn]), list[Drawn]()
    _require_success(next(quick))
    for each, killer in zip(drawn, quick, strict=True):
        if killer == SURVIVED:
            left.append(each)
        else:
            _report(each, killer)
    _print(f"{len(left)} are left for pytest")
    return left


def _require_success(killer: str) -> None:
    if killer != SURVIVED:
        raise RuntimeError(f"{killer} fails without any change")


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _report(drawn: Drawn, killer: str) -> None:
    if killer != SURVIVED:
        _print(f"noticed   {drawn.place}  {drawn.kind}  {killer}")
        return
    entry = f"{drawn.module}, {drawn.function!r}: Change('REASON', {drawn.old!r}, {drawn.new!r})"
    _print(f"SURVIVED  {drawn.place}  {drawn.kind}\n{drawn.patch}{entry}")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutations.draw", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, required=True, help="the same seed draws the same mutants of the same code")
    parser.add_argument("--count", type=int, default=20, help="mutants to draw (default: 20)")
    parser.add_argument(
        "--package", action="append", help=f"package or module to change; may be given repeatedly (default: {PACKAGE})"
    )
    parser.add_argument(
        "--tests",
        action="append",
        metavar="PATH",
        help="what pytest runs, instead of the tests of the rules; may be given repeatedly",
    )
    options = parser.parse_args(arguments)
    options.package = options.package or [PACKAGE]
    options.tests = options.tests or []
    if options.count < 1:
        parser.error(f"--count: expected a number of 1 or more, got {options.count}")
    for each in options.package:
        if not list_modules(each):
            parser.error(f"--package: expected a package or module such as {PACKAGE}, got {each}")
    for each in options.tests:
        if not (ROOT / each).exists():
            parser.error(f"--tests: expected a folder or file such as {PATHS[0]}, got {each}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, play and report; return the exit status."""
    options = _parse(arguments)
    explained = list(list_mutants(EXPLAINED))
    try:
        reasons = [(each, find_reason(each, explained)) for each in draw(options.package, options.seed, options.count)]
    except AnchorError as error:
        _print(f"{error}")
        return 2
    for each, reason in reasons:
        if reason is not None:
            _print(f"explained {each.place}  {each.kind}  {reason}")
    played = [each for each, reason in reasons if reason is None]
    survived = play_drawn(played, options.tests)
    noticed, explained_count = len(played) - survived, len(reasons) - len(played)
    _print(f"{len(reasons)} drawn, {noticed} noticed, {explained_count} explained, {survived} survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
