"""Long runs of the comparison: `python -m tests.rules.quota --runs 1000 --first 5000`.

Prints the scenario and the decisions of both sides at the first difference, and ends with status 1.
"""

import json
import sys
from argparse import ArgumentParser
from collections import Counter

from tests.rules.quota.generator import make_scenario
from tests.rules.quota.playing import compare, find_kinds, play_plain


def main() -> int:
    """Compare run after run, and print at the end what the runs contained."""
    parser = ArgumentParser(prog="python -m tests.rules.quota", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000, help="how many scenarios; default %(default)s")
    parser.add_argument("--first", type=int, default=0, help="the number of the first; default %(default)s")
    parser.add_argument("--all", action="store_true", help="go on after a difference, and print only their numbers")
    chosen = parser.parse_args()
    kinds: Counter[str] = Counter()
    different = []
    for number in range(chosen.first, chosen.first + chosen.runs):
        document = make_scenario(number)
        kinds.update(find_kinds(play_plain(document)))
        if difference := compare(document):
            different.append(number)
            if not chosen.all:
                sys.stdout.write(f"{json.dumps(document)}\nscenario {number}, {difference}\n")
                return 1
    sys.stdout.write(f"{chosen.runs} runs, {len(different)} differ {different[:20]}; runs with: {dict(kinds)}\n")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
