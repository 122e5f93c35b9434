"""The run of one seed: reservations, faults, the wait until everything has ended, and the verdict."""

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any, Final

from scheduler.model.transitions import ENDED
from scheduler.ports import StoreUnavailableError
from tests.chaos.checker import find_violations
from tests.chaos.database import Database
from tests.chaos.evidence import UNDER_WAY, Line, find_state, gather
from tests.chaos.hosts import LEASE_SECONDS, Hosts
from tests.chaos.machine_checks import is_done, is_launch
from tests.chaos.nemesis import Nemesis
from tests.chaos.points import count_struck
from tests.chaos.slow_clients import find_silence
from tests.chaos.witness import Witness

SETTLE_SECONDS: Final = 60.0
"""Longest wait for the next end of a reservation, or for the end of the last machine."""
MOST_SETTLE_SECONDS: Final = 150.0
"""Longest wait after the last fault for everything together."""
HOLDERS: Final = 2
LATE: Final = 8
"""One of this many requests is sent late, and gets a machine of its own."""
USE_SECONDS: Final = (0.1, 0.8)
WAVE_SECONDS: Final = (0.3, 3.0)
"""How long a lease is used; in a wave long enough that a late message finds its machine in use."""
IN_WAVES: Final = 3
"""One of this many requests belongs to a wave: requests of one holder that are sent together, at some time."""
WAVES: Final = (("fleet", 4, 1), ("tier", 3, 1), ("gang", 1, 3), ("fleet", 3, 1), ("tier", 2, 1), ("gang", 2, 3))
"""The waves in turns: system, requests, and machines that each of them needs at the same time."""


@dataclass
class Verdict:
    """The result of one seed."""

    seed: int
    violations: list[str]
    faults: list[str] = field(default_factory=list)
    reservations: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    """Number of EC2's calls that launched, of those for several machines, of starts, stops, and calls that terminated
    several machines.
    """
    struck: Counter[str] = field(default_factory=Counter)
    """How often processes were killed or stopped at each named point: `ORDER POINT` -> number."""
    uses: int = 0
    terms: int = 0
    settled_seconds: float = 0.0

    def describe(self) -> str:
        """Return one line that sums up the seed."""
        ends = ", ".join(f"{count} {phase}" for phase, count in sorted(self.ends.items()))
        return (
            f"seed {self.seed}: {len(self.faults)} faults, {self.reservations} accepted ({ends}), "
            f"{describe_counts(self.calls)}, {self.uses} uses, {self.terms} terms, "
            f"quiet after {self.settled_seconds:.1f} s: "
            + (f"{len(self.violations)} VIOLATIONS" if self.violations else "kept")
        )


def make_requests(seed: int, count: int, seconds: float) -> list[list[dict[str, Any]]]:
    """Return the requests of each holder process, by the random seed.

    `after`: seconds until the request is sent; `seconds`: how long its lease is used; `stops_early`: whether the
    holder stops when the lease is revoked. Most requests are sent at once and exceed the capacity. The late ones are
    sent one by one, and each gets its own machine. The requests of a wave get machines that are launched together.
    """
    dice = random.Random(seed)
    requests: list[list[dict[str, Any]]] = [[] for _ in range(HOLDERS)]
    waves = _plan_waves(dice, count // IN_WAVES, seconds)
    for number in range(count):
        system, size, after, holder = next(waves, ("", 1, 0.0, number % HOLDERS))
        seconds_used = dice.uniform(*(USE_SECONDS if not system else WAVE_SECONDS))
        if not system:
            is_late = number >= count - count // LATE
            system = "brief" if is_late else dice.choice(["single", "single", "shared"])
            after = dice.uniform(0, seconds) if is_late else 0.0
        document: dict[str, Any] = {"id": f"s{seed}-{number}", "system": system}
        if system == "shared":
            document["resources"] = {"cpus": dice.choice([1, 2])}
        elif system == "single" and dice.random() < 0.1:
            size = 2
        if size > 1:
            document["components"] = [{"name": "rank", "count": size}]
        if dice.random() < 0.3:
            document["restart_policy"] = "on_failure"
        request = {"id": document["id"], "document": document, "seconds": seconds_used, "after": after}
        requests[holder].append({**request, "stops_early": dice.random() < 0.5})
    return requests


def _plan_waves(dice: random.Random, count: int, seconds: float) -> Iterator[tuple[str, int, float, int]]:
    """Yield (system, machines that it needs, seconds until it is sent, holder) for this number of requests."""
    turns = dice.sample(range(len(WAVES)), len(WAVES))
    sizes = [WAVES[turns[number % len(WAVES)]] for number in range(count)]
    all_waves = ((each, dice.uniform(0, seconds), dice.randrange(HOLDERS)) for each in sizes)
    planned = ((system, size, at, holder) for (system, many, size), at, holder in all_waves for _ in range(many))
    yield from islice(planned, count)


def run_seed(
    folder: Path,
    database: Database,
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
        verdict.faults, verdict.struck = nemesis.faults, count_struck(hosts.points)
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
    if not is_over or any(find_state(slot) in UNDER_WAY for slot in slots):
        return False
    stopped = {slot.instance_id for slot in slots if slot.state == "stopped"}
    return all(each["state"] == ("stopped" if each["id"] in stopped else "terminated") for each in hosts.machines())


def _judge(hosts: Hosts, seed: int, settled: float) -> Verdict:
    evidence = gather(hosts.folder, hosts.services.ports.store, hosts.machines(), hosts.list_lives())
    ends: dict[str, int] = {}
    for phase in evidence.phases.values():
        ends[phase] = ends.get(phase, 0) + 1
    return Verdict(
        seed=seed,
        violations=[*find_violations(evidence), *find_silence(hosts)],
        reservations=len(evidence.accepted),
        ends=ends,
        calls=Counter(kind for call in evidence.calls for kind in find_kinds(call)),
        uses=len(evidence.uses),
        terms=len(set(evidence.terms)),
        settled_seconds=settled,
    )


def find_kinds(call: Line) -> Iterator[str]:
    if is_launch(call):
        yield "launches"
        if len(call["instances"]) > 1:
            yield f"batches by {call['action']}"
    for action, kind in (("StartInstances", "starts"), ("StopInstances", "stops")):
        if is_done(call, action):
            yield kind
    if is_done(call, "TerminateInstances") and len(call["instances"]) > 1:
        yield "terminated lists"
    if call["action"] == "TerminateInstances" and call["code"] == "OperationNotPermitted":
        yield "refused terminations"
    for met in call["faults"]:
        if met.startswith(("error:", "place:", "machine:")) and call["action"] in {"RunInstances", "CreateFleet"}:
            yield f"launches with {met}"


def describe_counts(counts: Counter[str]) -> str:
    """Return counts as text, sorted by name: `4 launches, 2 starts`."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
