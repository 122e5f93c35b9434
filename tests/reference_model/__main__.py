"""Compare many generated scenarios: `python -m tests.reference_model --runs 10000 --first 1`.

For a difference it prints the smallest scenario that shows it, for `leasehold simulate`, and the decisions of both
ticks. Status 1 if there was one.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from scheduler.model.validation import InvalidInputError
from tests.reference_model.comparing import Comparison, DifferenceError, compare
from tests.reference_model.packings import make_packing
from tests.reference_model.shrinking import does_differ, shrink
from tests.reference_model.stories import make_scenario

PACKINGS = 5
"""One seed in this number also plays a scenario of gangs that fill their slots."""


def main(words: Sequence[str] | None = None) -> int:
    """Parse the arguments, compare, print; return the status."""
    parser = argparse.ArgumentParser(prog="python -m tests.reference_model", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="scenarios to play")
    parser.add_argument("--first", type=int, default=1, help="seed of the first one; the others follow")
    parser.add_argument("--most", type=int, default=1, help="differences after which to stop")
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
            _explain(seed)
        if found >= arguments.most:
            break
    reached = ", ".join(f"{count} {kind}" for kind, count in sorted(comparison.reached.items()))
    _print(f"{comparison.ticks} ticks compared, {refused} scenarios refused, {found} differences\n{reached}")
    return 1 if found else 0


def _explain(seed: int) -> None:
    for make in (make_scenario, make_packing):
        if not does_differ(make(seed)):
            continue
        smallest = shrink(make(seed))
        try:
            compare(smallest)
        except DifferenceError as difference:
            _print(f"seed {seed}: {difference}\n{json.dumps(smallest)}")


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
