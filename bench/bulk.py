"""Launches in bulk on a whole stack against the EC2 emulator: counted calls, and the seconds until all slots are ready.

`python -m bench.bulk [--slots 1000] [--json]`. Must reach with 1,000 slots: at most 20 mutating calls until all are
ready, at most 10 to end them, at most slots / 100 + 2 describe calls for each pass of the health checks.
"""

import json
from argparse import ArgumentParser
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

from tests.guarding import take_signals_as_interrupts
from tests.system.stack import Stack, a_pool

PATIENCE = 600.0
OFFERINGS = [{"name": name} for name in ("c5.large", "m5.large", "c5a.large")]
MUTATING = ("CreateFleet", "RunInstances", "CreateLaunchTemplate", "TerminateInstances", "CreateTags")


def count_calls(stack: Stack) -> Counter[str]:
    """Return the number of calls that EC2 served so far, by action."""
    return Counter(call["action"] for call in stack.control("calls")["calls"])


def await_slots(stack: Stack, state: str, count: int) -> float:
    """Wait until this many slots are in the state. Return the seconds."""
    began = monotonic()
    while sum(slot.state == state for slot in stack.slots()) < count:
        assert monotonic() < began + PATIENCE, f"fewer than {count} slots are {state}"
        # As exact as the figure has to be.
        sleep(0.2)
    return monotonic() - began


def measure(slots: int) -> dict[str, Any]:
    """Let a pool have `slots` slots at once and let them go again. Return the seconds and the calls of both."""
    full = {"pools": {"linux": a_pool(min_slots=slots, max_slots=slots, offerings=OFFERINGS)}}
    none = {"pools": {"linux": a_pool(min_slots=0, max_slots=slots, offerings=OFFERINGS)}}
    with (
        TemporaryDirectory(prefix="leasehold-bench-") as folder,
        Stack(Path(folder), none, SWEEP_INTERVAL=5, RECOVER_INTERVAL=10) as stack,
    ):
        found: dict[str, Any] = {"slots": slots}
        for name, rules, state in (("launch", full, "ready"), ("end", none, "empty")):
            before = count_calls(stack)
            stack.apply(rules)
            seconds = await_slots(stack, state, slots)
            calls = count_calls(stack) - before
            found[name] = {
                "seconds": seconds,
                "mutating": sum(calls[action] for action in MUTATING),
                "calls": dict(calls),
            }
        found["machines"] = len(stack.instances())
        return found


def main() -> None:
    """Print one line for the launch and one for the end of the slots."""
    take_signals_as_interrupts()
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=1000, help="how many slots (default: 1000)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    found = measure(options.slots)
    if options.json:
        print(json.dumps(found))
        return
    for name in ("launch", "end"):
        line = found[name]
        calls = ", ".join(f"{action} {count}" for action, count in sorted(line["calls"].items()))
        print(
            f"{name:<7} {found['slots']} slots: {line['seconds']:6.1f} s, {line['mutating']} mutating calls ({calls})"
        )
    print(f"machines that EC2 launched: {found['machines']}")


if __name__ == "__main__":
    main()
