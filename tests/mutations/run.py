"""Break one rule at a time and report which test notices: `python -m tests.mutations.run [--write|--check]`.

`--write` makes docs/reference/mutations.md. `--check` prints the page, and a test compares it with the file. Both
first try the test that the page names for a rule, and the other tests only where that one notices nothing.
"""

import sys
from collections.abc import Mapping

from tests.mutations.anchor import AnchorError, change
from tests.mutations.mutant import Mutant
from tests.mutations.mutants import MUTANTS
from tests.mutations.playing import ROOT, SURVIVED, find_killer, play, read

PAGE = ROOT / "docs" / "reference" / "mutations.md"

HEAD = """# Mutations

Are the tests of the rules any good? Each row is a rule that was turned into a wrong one, and a test that fails then.
`python -m tests.mutations.run` breaks the rules one by one. A test compares this page with what it finds, and
`python -m tests.mutations.run --write` writes the page. The changes are listed in `tests/mutations/of_*.py`, each with
its module, its function and the expression or statement that it replaces. Layout, comments and lines do not matter.

`python -m tests.mutations.draw` draws other changes of `scheduler/policy` at random and plays them. The large samples
have 200 of them each: 25 for each of the seeds 2001 to 2008, and 200 for each of the seeds 3101 and 4207. *Plain calls*
and *pytest* noticed a mutant with the tests that were there. *New test*: the mutant led to a test that notices it.
*Explained*: it changes nothing, for the reason in `tests/mutations/explained.py`, or because its code had no effect and
is removed now. *Open*: no test notices it, and it is not shown to change nothing. For 4207, pytest ran only the tests
of the mutant's package. After a change of the code a seed draws other mutants.

| seed | plain calls | pytest | new test | explained | open |
|---|---|---|---|---|---|
| 2001 | 15 | 2 | 3 | 5 | 0 |
| 2002 | 19 | 2 | 2 | 2 | 0 |
| 2003 | 19 | 0 | 5 | 1 | 0 |
| 2004 | 16 | 2 | 5 | 2 | 0 |
| 2005 | 15 | 3 | 5 | 2 | 0 |
| 2006 | 17 | 1 | 6 | 1 | 0 |
| 2007 | 17 | 4 | 2 | 2 | 0 |
| 2008 | 18 | 2 | 5 | 0 | 0 |
| 2001 to 2008 | 136 | 16 | 33 | 15 | 0 |
| 3101 | 129 | 11 | 38 | 22 | 0 |
| 4207 | 146 | 14 | 19 | 21 | 0 |

| function | the rule that is broken | code | changed to | noticed by |
|---|---|---|---|---|
"""


def find_killers(known: Mapping[str, str]) -> list[tuple[Mutant, str]]:
    """Return every mutant with a test that notices it, the `known` one of its rule if that one does."""
    for mutant in MUTANTS:
        change(read(mutant.module), mutant)
    calls = [(None, ""), *((mutant, known.get(mutant.rule, "")) for mutant in MUTANTS)]
    found = play(find_killer, calls)
    if found[0] != SURVIVED:
        raise RuntimeError(f"{found[0]} fails without any change")
    return list(zip(MUTANTS, found[1:], strict=True))


def read_killers(page: str) -> dict[str, str]:
    """Return the tests that the page names, by rule."""
    rows = [row.strip("| ").split(" | ") for row in page.splitlines() if row.startswith("| `")]
    return {row[1]: row[-1].strip("`") for row in rows}


def describe(found: list[tuple[Mutant, str]]) -> str:
    """Return the page."""
    rows = [
        f"| {_locate(each)} | {each.rule} | {_show(each.old)} | {_show(each.new)} | `{killer}` |"
        for each, killer in found
    ]
    return HEAD + "\n".join(rows) + "\n"


def _locate(mutant: Mutant) -> str:
    module = mutant.module.removeprefix("scheduler.")
    return f"`{module}:{mutant.function}`" if mutant.function else f"`{module}`"


def _show(code: str) -> str:
    text = " ⏎ ".join(line.strip() for line in code.strip().splitlines()).replace("|", r"\|")
    return f"`{text}`" if text else "removed"


def main() -> int:
    """Print the page, or with --write write it; 1 if a mutant survives, 2 if its code is not there."""
    try:
        found = find_killers(read_killers(PAGE.read_text(encoding="utf-8")))
    except AnchorError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    page = describe(found)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page, encoding="utf-8")
    print(page)  # noqa: T201
    return int(any(killer == SURVIVED for _, killer in found))


if __name__ == "__main__":
    sys.exit(main())
