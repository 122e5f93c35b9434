"""Every broken rule makes a test fail, and docs/reference/mutations.md names it."""

import ast
import subprocess
import sys

import pytest

from tests.mutations.anchor import change, is_same
from tests.mutations.mutant import Mutant
from tests.mutations.mutants import MUTANTS
from tests.mutations.playing import ROOT, SURVIVED, read
from tests.mutations.run import PAGE


def test_every_broken_rule_makes_a_test_fail_and_the_page_names_it() -> None:
    """Run `python -m tests.mutations.run --write` to write the page."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.mutations.run", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.stderr == ""
    assert [line for line in run.stdout.splitlines() if SURVIVED in line] == []
    assert run.stdout.strip() == PAGE.read_text(encoding="utf-8").strip()
    assert run.returncode == 0


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_the_code_of_each_mutant_is_there_once_and_is_changed(mutant: Mutant) -> None:
    source = read(mutant.module)
    assert not is_same(change(source, mutant), ast.parse(source))


def test_each_of_the_mutants_breaks_a_rule_of_its_own() -> None:
    assert len({mutant.rule for mutant in MUTANTS}) == len(MUTANTS) >= 113
