"""Waits of reservations for warm, stopped and cold starts, in the simulator and on a whole stack with the EC2 emulator.

`python -m bench.starts [--rounds 5] [--simulated] [--json]`. One reservation at a time is submitted to a pool that has
a warm machine, a stopped one, or none. Must reach: a stopped start waits less than half of a cold one.
"""

import json
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any, Final

from scheduler.model.slots import Slot
from scheduler.simulation.runner import play
from scheduler.simulation.scenario import read_scenario
from testbed.guarding import take_signals_as_interrupts
from testbed.stack import Stack, a_pool

PATIENCE: Final = 120.0
KINDS: Final[dict[str, dict[str, Any]]] = {
    "warm": {"target_warm_slots": 1},
    "stopped": {"stopped_slots": 1},
    "cold": {},
}
OFFERINGS: Final = [{"name": "m5.large", "market": "on-demand", "price": 0.1, "resources": {"cpus": 2}}]
SIMULATED: Final = {"launch": 2, "boot": 60, "bind": 15, "stop": 30, "start": 12, "terminate": 10}
"""Seconds of the simulated cloud: a usual Linux image with a boot script that installs packages."""
EMULATED: Final = {"boot_seconds": 10, "start_seconds": 2, "stop_seconds": 1, "status_seconds": 1}
"""Seconds of the emulator: a sixth of the above, so that a round takes a moment."""
ROUND: Final = 600.0
"""Virtual seconds between two reservations in the simulator."""


def measure_simulated(kind: str, rounds: int) -> list[float]:
    """Return the seconds that each reservation waits in the simulator."""
    pool = {"system": "x86_64-linux", "max_slots": 3, "idle_scale_down": 60, "offerings": OFFERINGS, **KINDS[kind]}
    wish = {"system": "x86_64-linux", "resources": {"cpus": 2}, "runtime": 30}
    timeline: list[dict[str, Any]] = [{"at": 0, "tick": True}]
    timeline += [{"at": ROUND * (1 + each), "submit": [{"id": f"r{each}", **wish}]} for each in range(rounds)]
    document = {"config": {"pools": {"linux": pool}}, "cloud": SIMULATED, "timeline": timeline}
    lines = list(play(read_scenario({**document, "kicks": True, "wakes": True, "until": ROUND * (rounds + 2)})))
    leased = {line["reservation"]: line["at"] for line in lines if line.get("event") == "reservation_leased"}
    return [leased[f"r{each}"] - ROUND * (1 + each) for each in range(rounds)]


def is_prepared(kind: str, slots: list[Slot]) -> bool:
    """Return whether a pool is as it should be before a reservation arrives."""
    states = [slot.state for slot in slots if slot.state != "empty"]
    match kind:
        case "warm":
            return states == ["ready"]
        case "stopped":
            return states == ["stopped"] and all(slot.power is None for slot in slots)
        case _:
            return not states


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait until something holds, for two minutes at most."""
    begin = monotonic()
    while not is_so():
        assert monotonic() < begin + PATIENCE, f"not reached in {PATIENCE:g} s: {what}"
        sleep(0.02)


def measure_on_a_stack(kind: str, rounds: int) -> list[float]:
    """Return the seconds that each reservation waits on a whole stack, from the answer to its lease."""
    pools = {"linux": a_pool(offerings=OFFERINGS, idle_scale_down=1, **KINDS[kind])}
    waits: list[float] = []
    with (
        TemporaryDirectory(prefix="leasehold-bench-") as folder,
        Stack(Path(folder), {"pools": {}}, SWEEP_INTERVAL=0.5, RECOVER_INTERVAL=5) as stack,
    ):
        stack.control("settings", EMULATED, "PUT")
        stack.apply({"pools": pools})
        for number in range(rounds):
            name = f"r{number}"
            wait_until(lambda: is_prepared(kind, stack.slots()), f"the pool is ready for the round {number}")
            stack.ask("submit", {"id": name, "system": "x86_64-linux", "resources": {"cpus": 2}})
            begin = monotonic()
            wait_until(lambda name=name: stack.find(name).phase == "leased", f"{name} is leased")  # type: ignore[misc]
            waits.append(monotonic() - begin)
            stack.ask("release", {"reservation": name, "token": stack.find(name).token})
    return waits


def main() -> None:
    """Print a row of a table for each kind of start."""
    take_signals_as_interrupts()
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="reservations of each kind (default: 5)")
    parser.add_argument("--simulated", action="store_true", help="only in the simulator")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    found = {
        kind: {
            "simulated": measure_simulated(kind, options.rounds),
            "emulated": [] if options.simulated else measure_on_a_stack(kind, options.rounds),
        }
        for kind in KINDS
    }
    if options.json:
        print(json.dumps(found))
        return
    print(f"delays in the simulator: {SIMULATED}; of the emulator: {EMULATED}")
    print("| start | wait in the simulator | wait on a stack: median | longest |\n|---|---|---|---|")
    for kind, waits in found.items():
        on_stack = waits["emulated"]
        shown = (f"{median(on_stack):.1f} s", f"{max(on_stack):.1f} s") if on_stack else ("", "")
        print(f"| {kind} | {median(waits['simulated']):.0f} s | {shown[0]} | {shown[1]} |")
    for place in ("simulated", "emulated"):
        if found["cold"][place]:
            assert median(found["stopped"][place]) < median(found["cold"][place]) / 2, place


if __name__ == "__main__":
    main()
