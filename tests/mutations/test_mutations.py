"""Every broken rule turns a test red, and docs/mutations.md says which."""

import subprocess
import sys

from tests.mutations.mutants import MUTANTS
from tests.mutations.run import PAGE, POLICY, ROOT, SURVIVED, change


def test_every_broken_rule_turns_a_test_red_and_the_page_says_which() -> None:
    """Run `python -m tests.mutations.run --write` when this page is to be made anew."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.mutations.run", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.stderr == ""
    assert [line for line in run.stdout.splitlines() if SURVIVED in line] == []
    assert run.stdout.strip() == PAGE.read_text(encoding="utf-8").strip()
    assert run.returncode == 0


def test_there_are_twenty_and_more_and_each_changes_something() -> None:
    assert len(MUTANTS) >= 20
    for mutant in MUTANTS:
        source = (POLICY / f"{mutant.module}.py").read_text(encoding="utf-8")
        assert change(source, mutant) != source
