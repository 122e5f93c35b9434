"""The run of one seed: reservations, faults, the wait until everything has ended, and the verdict."""

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
"""Longest wait for the next end of a reservation, or for the end of the last machine."""
MOST_SETTLE_SECONDS: Final = 150.0
"""Longest wait after the last fault for everything together."""
HOLDERS: Final = 2
LATE: Final = 8
"""One of this many requests is sent late."""


@dataclass
class Verdict:
    """The result of one seed."""

    seed: int
    violations: list[str]
    faults: list[str] = field(default_factory=list)
    reservations: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    launches: int = 0
    uses: int = 0
    terms: int = 0
    settled_seconds: float = 0.0

    def describe(self) -> str:
        """Return one line that sums up the seed."""
        ends = ", ".join(f"{count} {phase}" for phase, count in sorted(self.ends.items()))
        return (
            f"seed {self.seed}: {len(self.faults)} faults, {self.reservations} accepted ({ends}), "
            f"{self.launches} launches, {self.uses} uses, {self.terms} terms, "
            f"quiet after {self.settled_seconds:.1f} s: "
            + (f"{len(self.violations)} VIOLATIONS" if self.violations else "kept")
        )


def make_requests(seed: int, count: int, seconds: float) -> list[list[dict[str, Any]]]:
    """Return the requests of each holder process, by the random seed.

    `after`: seconds until the request is sent; `seconds`: how long its lease is used; `stops_early`: whether the
    holder stops when the lease is revoked. Most requests are sent at once and exceed the capacity. The late ones are
    sent one by one, and each gets its own machine.
    """
    dice = random.Random(seed)
    requests: list[list[dict[str, Any]]] = [[] for _ in range(HOLDERS)]
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
        request = {"id": document["id"], "document": document, "seconds": dice.uniform(0.1, 0.8)}
        request["after"] = dice.uniform(0, seconds) if is_late else 0.0
        requests[number % HOLDERS].append({**request, "stops_early": dice.random() < 0.5})
    return requests


def run_seed(
    folder: Path,
    database: str,
    seed: int,
    *,
    count: int = 200,
    seconds: float = 12.0,
    off: str | None = None,
    only: Sequence[str] = (),
) -> Verdict:
    """Run one seed on its own stack and return the verdict. The files of the run stay in `folder`.

    `count`: number of reservations. `seconds`: duration of the faults. `off`: a guard that is switched off. `only`:
    the faults to inject; default: all.
    """
    folder.mkdir(exist_ok=True)
    with Hosts(folder, database, off) as hosts:
        for number, requests in enumerate(make_requests(seed, count, seconds)):
            (folder / f"requests-{number}.json").write_text(json.dumps(requests))
            hosts.start(f"holders-{number}", "tests.chaos.holders", str(folder), str(number))
        nemesis = Nemesis(hosts, seed, seconds, only)
        with Witness(folder, hosts.services.ports.store) as witness:
            with nemesis:
                Event().wait(seconds)
            settled = _settle(hosts, witness, count)
        verdict = _judge(hosts, seed, settled)
        verdict.faults = nemesis.faults
        (folder / "faults.txt").write_text("\n".join(nemesis.faults))
    return verdict


def _settle(hosts: Hosts, witness: Witness, count: int) -> float:
    """Wait until all reservations have ended and all machines are terminated; return the seconds.

    The wait ends when no reservation has ended for SETTLE_SECONDS and two lease times: leases of killed holders expire
    in that time. A busy machine takes longer for all of them, up to MOST_SETTLE_SECONDS.
    """
    began, pause = time.monotonic(), Event()
    ended, ended_at = len(witness.ended), began
    while (now := time.monotonic()) < min(ended_at + SETTLE_SECONDS + 2 * LEASE_SECONDS, began + MOST_SETTLE_SECONDS):
        # Repeated, since a process may take its order to stop and stop after the signal to continue.
        hosts.go_on()
        if _is_quiet(hosts, witness, count):
            break
        if len(witness.ended) > ended:
            ended, ended_at = len(witness.ended), now
        pause.wait(0.2)
    return time.monotonic() - began


def _is_quiet(hosts: Hosts, witness: Witness, count: int) -> bool:
    """Return whether everything has ended. The witness counts the ends, because a restore removes them from SQL."""
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
        terms=len(set(evidence.terms)),
        settled_seconds=settled,
    )
