"""Compare many generated scenarios: `python -m tests.reference_model --runs 10000 --first 1`.

For a difference it writes the smallest scenario that shows it as a scenario file, and prints the path and the decisions
of both ticks. Status 1 if there was one.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scheduler.model.validation import InvalidInputError
from tests.reference_model.comparing import Comparison, DifferenceError, compare
from tests.reference_model.packings import make_packing
from tests.reference_model.shrinking import does_differ, shrink
from tests.reference_model.stories import make_scenario
from tests.scenarios.files import FOLDER, keep_difference

PACKINGS = 5
"""One seed in this number also plays a scenario of gangs that fill their slots."""


def main(words: Sequence[str] | None = None) -> int:
    """Parse the arguments, compare, print; return the status."""
    parser = argparse.ArgumentParser(prog="python -m tests.reference_model", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="scenarios to play")
    parser.add_argument("--first", type=int, default=1, help="seed of the first one; the others follow")
    parser.add_argument("--most", type=int, default=1, help="differences after which to stop")
    parser.add_argument("--keep", type=Path, default=FOLDER, metavar="DIR", help="folder for the scenario files")
    arguments = parser.parse_args(words)
    comparison, found, refused = Comparison(), 0, 0
    for seed in range(arguments.first, arguments.first + arguments.runs):
        try:
            compare(make_scenario(seed), comparison)
            if seed % PACKINGS == 0:
                compare(make_packing(seed), comparison)
        except InvalidInputError as error:
            refused += 1
            _print(f"seed {seed} is refused: {error}")
        except DifferenceError:
            found += 1
            _keep(seed, arguments.keep)
        if found >= arguments.most:
            break
    reached = ", ".join(f"{count} {kind}" for kind, count in sorted(comparison.reached.items()))
    _print(f"{comparison.ticks} ticks compared, {refused} scenarios refused, {found} differences\n{reached}")
    return 1 if found else 0


def _keep(seed: int, folder: Path) -> None:
    for kind, make in (("scenario", make_scenario), ("packing", make_packing)):
        if not does_differ(make(seed)):
            continue
        smallest = shrink(make(seed))
        try:
            compare(smallest)
        except DifferenceError as difference:
            path = keep_difference(folder, f"difference-{kind}-{seed}", smallest, str(difference))
            _print(f"{path}: {difference}")


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
