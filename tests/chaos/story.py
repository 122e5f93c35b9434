"""One seed's story: reservations, faults, quiet, verdict."""

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, Final

from scheduler.model.transitions import ENDED
from scheduler.ports import StoreUnavailableError
from tests.chaos.checker import UNDER_WAY, find_violations, gather, is_launch
from tests.chaos.hosts import LEASE_SECONDS, Hosts
from tests.chaos.nemesis import Nemesis
from tests.chaos.witness import Witness

SETTLE_SECONDS: Final = 60.0
"""After the last fault, or the last end of a reservation: then all have ended, and no machine is left."""
MOST_SETTLE_SECONDS: Final = 150.0
"""After the last fault, whatever ends meanwhile."""
HOLDERS: Final = 2
LATE: Final = 8
"""One of this many is late."""


@dataclass
class Verdict:
    """What came of one seed."""

    seed: int
    violations: list[str]
    deeds: list[str] = field(default_factory=list)
    reservations: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    launches: int = 0
    uses: int = 0
    terms: int = 0
    settled_seconds: float = 0.0

    def describe(self) -> str:
        """A line for people."""
        ends = ", ".join(f"{count} {phase}" for phase, count in sorted(self.ends.items()))
        return (
            f"seed {self.seed}: {len(self.deeds)} faults, {self.reservations} accepted ({ends}), "
            f"{self.launches} launches, {self.uses} uses, {self.terms} terms, "
            f"quiet after {self.settled_seconds:.1f} s: "
            + (f"{len(self.violations)} VIOLATIONS" if self.violations else "kept")
        )


def make_wishes(seed: int, count: int, seconds: float) -> list[list[dict[str, Any]]]:
    """What each holder process asks for and when, how long it holds, and whether it lets go when it is asked to.

    Most of it at once, far more than there is room for; the late ones one by one, each on a machine of its own.
    """
    dice = random.Random(seed)
    wishes: list[list[dict[str, Any]]] = [[] for _ in range(HOLDERS)]
    for number in range(count):
        is_late = number >= count - count // LATE
        system = "brief" if is_late else dice.choice(["single", "single", "shared"])
        document: dict[str, Any] = {"id": f"s{seed}-{number}", "system": system}
        if system == "shared":
            document["resources"] = {"cpus": dice.choice([1, 2])}
        elif system == "single" and dice.random() < 0.1:
            document["components"] = [{"name": "rank", "count": 2}]
        if dice.random() < 0.3:
            document["restart_policy"] = "on_failure"
        wish = {"id": document["id"], "document": document, "seconds": dice.uniform(0.1, 0.8)}
        wish["after"] = dice.uniform(0, seconds) if is_late else 0.0
        wishes[number % HOLDERS].append({**wish, "obeys": dice.random() < 0.5})
    return wishes


def tell(
    folder: Path,
    database: str,
    seed: int,
    *,
    count: int = 200,
    seconds: float = 12.0,
    off: str | None = None,
    only: Sequence[str] = (),
) -> Verdict:
    """Play one seed on a stack of its own and judge it; what it left stays in `folder`."""
    folder.mkdir(exist_ok=True)
    with Hosts(folder, database, off) as hosts:
        for number, wishes in enumerate(make_wishes(seed, count, seconds)):
            (folder / f"wishes-{number}.json").write_text(json.dumps(wishes))
            hosts.start(f"holders-{number}", "tests.chaos.holders", str(folder), str(number))
        nemesis = Nemesis(hosts, seed, seconds, only)
        with Witness(folder, hosts.services.ports.store) as witness:
            with nemesis:
                Event().wait(seconds)
            settled = _settle(hosts, witness, count)
        verdict = _judge(hosts, seed, settled)
        verdict.deeds = nemesis.deeds
        (folder / "deeds.txt").write_text("\n".join(nemesis.deeds))
    return verdict


def _settle(hosts: Hosts, witness: Witness, count: int) -> float:
    """Wait until everything has ended and no machine is left; how long it took.

    At most SETTLE_SECONDS after the last reservation ended, and two lease times more: leases of killed holders run out
    by themselves. A machine that has other things to do takes longer for all of them together.
    """
    began, pause = time.monotonic(), Event()
    ended, ended_at = len(witness.ended), began
    while (now := time.monotonic()) < min(ended_at + SETTLE_SECONDS + 2 * LEASE_SECONDS, began + MOST_SETTLE_SECONDS):
        # Again and again: who had taken the order to stop may have stopped only after all were told to go on.
        hosts.go_on()
        if _is_quiet(hosts, witness, count):
            break
        if len(witness.ended) > ended:
            ended, ended_at = len(witness.ended), now
        pause.wait(0.2)
    return time.monotonic() - began


def _is_quiet(hosts: Hosts, witness: Witness, count: int) -> bool:
    """Whether everything has ended. What ended before a restore is not in SQL any more."""
    store = hosts.services.ports.store
    try:
        phases, slots = store.count_phases(), store.find_slots()
    except StoreUnavailableError:
        return False
    is_over = len(witness.ended) >= count and not any(number for phase, number in phases.items() if phase not in ENDED)
    is_done = is_over and not any(slot.state in UNDER_WAY for slot in slots)
    return is_done and all(each["state"] == "terminated" for each in hosts.machines())


def _judge(hosts: Hosts, seed: int, settled: float) -> Verdict:
    evidence = gather(hosts.folder, hosts.services.ports.store, hosts.machines())
    ends: dict[str, int] = {}
    for phase in evidence.phases.values():
        ends[phase] = ends.get(phase, 0) + 1
    return Verdict(
        seed=seed,
        violations=find_violations(evidence),
        reservations=len(evidence.accepted),
        ends=ends,
        launches=sum(is_launch(call) for call in evidence.calls),
        uses=len(evidence.uses),
        terms=max(evidence.terms, default=0),
        settled_seconds=settled,
    )
