"""Long runs of the comparison: `python -m tests.reference_model.quota --runs 1000 --first 5000`.

Writes the smallest scenario that shows the first difference as a scenario file, prints the path and the decisions of
both sides, and ends with status 1.
"""

import sys
from argparse import ArgumentParser
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.reference_model.quota.generator import make_scenario
from tests.reference_model.quota.playing import Document, compare, find_kinds, play_plain
from tests.reference_model.shrinking import shrink
from tests.scenarios.files import FOLDER, keep_difference


def main() -> int:
    """Compare run after run, and print at the end what the runs contained."""
    parser = ArgumentParser(prog="python -m tests.reference_model.quota", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000, help="how many scenarios; default %(default)s")
    parser.add_argument("--first", type=int, default=0, help="the number of the first; default %(default)s")
    parser.add_argument("--all", action="store_true", help="go on after a difference, and print only their numbers")
    parser.add_argument("--keep", type=Path, default=FOLDER, metavar="DIR", help="folder for the scenario files")
    chosen = parser.parse_args()
    kinds: Counter[str] = Counter()
    different = []
    for number in range(chosen.first, chosen.first + chosen.runs):
        document = make_scenario(number, has_helpers=number % 2 == 1)
        kinds.update(find_kinds(play_plain(document)))
        if difference := compare(document):
            different.append(number)
            if not chosen.all:
                smallest = shrink(document, does_differ)
                path = keep_difference(
                    chosen.keep, f"difference-quota-{number}", smallest, compare(smallest) or difference, plain=True
                )
                sys.stdout.write(f"{path}: {difference}\n")
                return 1
    sys.stdout.write(f"{chosen.runs} runs, {len(different)} differ {different[:20]}; runs with: {dict(kinds)}\n")
    return 1 if different else 0


def does_differ(document: Document) -> bool:
    """Whether both play it, and differ."""
    with suppress(Exception):  # the plain scheduler does not check what it is given
        return compare(document) is not None
    return False


if __name__ == "__main__":
    sys.exit(main())
