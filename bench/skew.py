"""The time to a lease, and the faults, while the wall clock of one program after the other is wrong.

`python -m bench.skew` tests ± 20 and ± 600 s for each program, then jumps of the whole host; `--full` tests ± 5 and
± 60 s as well. Must reach: no lease lost, no slot leased twice, no machine left, leases within twice the time
without skew.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from scheduler.model.slots import Slot
from testbed.guarding import take_signals_as_interrupts
from testbed.processes import Process, wait_for
from testbed.stack import Stack, a_pool

SERVERS: Final = ("beat", "reservations", "ticks", "launch", "health", "terminate")
CLIENTS: Final = ("holder", "agent")
PROGRAMS: Final = (*SERVERS, *CLIENTS)
SHIFTS: Final = (5.0, -5.0, 20.0, -20.0, 60.0, -60.0, 600.0, -600.0)
QUICK: Final = (20.0, -20.0, 600.0, -600.0)
ROUNDS: Final = 3
"""Leases on new machines for each row."""
TTL: Final = 8.0
PATIENCE: Final = 90.0
RULES: Final[dict[str, Any]] = {
    "pools": {
        "brief": a_pool(system="brief", max_slots=1, max_leases_per_slot=1, idle_scale_down=0.1),
        "held": a_pool(system="held", max_slots=1, max_leases_per_slot=1),
        "lab": {"system": "lab", "provider": "static", "offline_timeout": 8},
    }
}


@dataclass
class Row:
    """What came of one case: seconds from submit to leased on a new machine, and to the end of that machine."""

    name: str
    leases: list[float]
    ends: list[float]
    faults: list[str]

    def show(self, calm: float) -> str:
        """A line of the table."""
        took = median(self.leases) if self.leases else float("nan")
        gone = median(self.ends) if self.ends else float("nan")
        verdict = "; ".join(self.faults) or "kept"
        return f"{self.name:<24} {took:7.2f} s {took / calm:6.2f} x {gone:8.2f} s   {verdict}"


class SkewedStack(Stack):
    """The stack of the end-to-end tests with an agent of a host and a command that holds a lease all the time."""

    def begin(self) -> None:
        """Start what holds leases, and wait until it does."""
        words = "host run lab-1 --pool lab --machine m1 --cpus 4 --state"
        self.start("agent", "leasehold.cli", *words.split(), str(self.folder / "host"))
        command = f"until [ -e {self.folder}/over ]; do sleep 0.2; done"
        words = f"run --id held --pool held --ttl {TTL} --wait 60 -- sh -c"
        self.holder: Process = self.start("holder", "leasehold.cli", *words.split(), command)
        (self.held,) = self.await_phase(["held"], "leased")
        assert self.ask("submit", {"id": "next", "pool": "held", "ttl": 0})["ok"]

    def find_faults(self) -> list[str]:
        """What does not hold any more of the lease and the host."""
        faults = []
        now = self.find("held")
        if (now.phase, now.token) != ("leased", self.held.token) or not self.holder.is_alive:
            faults.append(f"the lease was lost ({now.phase}, {now.reason})")
        if self.find("next").phase != "pending":
            faults.append("the place was given out twice")
        if [slot.state for slot in self.slots("lab")] != ["ready"]:
            faults.append("the host is not ready")
        return faults

    def end(self) -> list[str]:
        """Let go of everything; what is left."""
        (self.folder / "over").touch()
        status = self.holder.await_end()
        faults = [] if status == 0 else [f"the holder ended with {status}"]
        self.await_phase(["next"], "leased")
        self.ask("release", {"reservation": "next", "token": self.find("next").token})
        self.await_empty("held")
        left = [each["id"] for each in self.instances("pending", "running")]
        return faults + ([f"{len(left)} machines are left"] if left else [])


def play(stack: SkewedStack, name: str, shifts: dict[str, float], number: int) -> Row:
    """One case: the shifts, then leases on new machines one after the other; the clocks stay as they are."""
    for program in PROGRAMS:
        stack.shifts.set(program, shifts.get(program, 0.0))
    row = Row(name, [], [], [])
    began = time.monotonic()
    for turn in range(ROUNDS):
        try:
            took, gone = time_lease(stack, f"b-{number}-{turn}")
        except AssertionError as error:
            row.faults.append(str(error).partition("\n")[0])
            break
        row.leases.append(took)
        row.ends.append(gone)
    # A lease that is not renewed would be lost now.
    while time.monotonic() - began < 1.5 * TTL:
        time.sleep(0.1)
    row.faults += stack.find_faults()
    return row


def time_lease(stack: SkewedStack, name: str) -> tuple[float, float]:
    """Seconds to a lease on a new machine, and from its release to the machine's end."""

    def is_leased() -> bool:
        return stack.find(name).phase == "leased"

    def is_empty() -> bool:
        return all(slot.state == "empty" for slot in find_slots(stack))

    began = time.monotonic()
    assert stack.ask("submit", {"id": name, "pool": "brief", "ttl": 0})["ok"]
    wait_for(is_leased, "a lease", PATIENCE)
    leased = time.monotonic()
    assert stack.ask("release", {"reservation": name, "token": stack.find(name).token})["ok"]
    wait_for(is_empty, "the machine to end", PATIENCE)
    return leased - began, time.monotonic() - leased


def find_slots(stack: SkewedStack) -> list[Slot]:
    """The slots whose machines come and go."""
    return stack.slots("brief")


def list_cases(shifts: Sequence[float]) -> Iterator[tuple[str, dict[str, float]]]:
    """Each program by each shift, then the whole host."""
    yield "calm", {}
    for program, seconds in product(PROGRAMS, shifts):
        yield f"{program} {seconds:+g} s", {program: seconds}
    for seconds in (600.0, -600.0):
        yield f"whole host {seconds:+g} s", dict.fromkeys(PROGRAMS, seconds)
    yield "calm again", {}


def main() -> None:
    """Play all cases on one stack and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.skew", description=__doc__)
    parser.add_argument("--full", action="store_true", help="more shifts")
    parser.add_argument("--programs", nargs="*", help="only cases whose name begins with one of these")
    options = parser.parse_args()
    take_signals_as_interrupts()
    print(f"{'case':<24} {'to a lease':>9} {'of calm':>8} {'to its end':>10}")
    with (
        TemporaryDirectory(prefix="leasehold-skew-", ignore_cleanup_errors=True) as folder,
        SkewedStack(Path(folder), RULES) as stack,
    ):
        stack.begin()
        calm = 0.0
        for number, (name, shifts) in enumerate(list_cases(SHIFTS if options.full else QUICK)):
            if calm and options.programs and not name.startswith(tuple(options.programs)):
                continue
            row = play(stack, name, shifts, number)
            calm = calm or median(row.leases)
            print(row.show(calm), flush=True)
        print("in the end: " + ("; ".join(stack.end()) or "all has ended, no machine is left"))


if __name__ == "__main__":
    main()
