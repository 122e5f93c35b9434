"""The run of one seed of commands: submissions, faults, the wait until everything has ended, and the verdict."""

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from typing_extensions import override

from leasehold.client.client import Client
from leasehold.errors import LeaseholdError
from leasehold.work.guard import read_boot_clock
from scheduler.model.transitions import ENDED
from scheduler.ports import StoreUnavailableError
from testbed.processes import wait_for
from tests.chaos.commands import workload
from tests.chaos.commands.checker import Blow, CommandEvidence, find_command_violations, read_lines
from tests.chaos.commands.hosts import POOLS, STATIC_HOSTS, CommandHosts
from tests.chaos.commands.nemesis import BEYOND_DEADLINE_SECONDS, FULL_STOP_SECONDS, STOP_SECONDS, CommandNemesis
from tests.chaos.database import Database
from tests.chaos.points import count_struck
from tests.chaos.seed_run import Verdict, describe_counts
from tests.chaos.witness import read_events

COUNT: Final = 60
SETTLE_SECONDS: Final = 60.0
"""Longest wait for the next end of a reservation or command."""
QUIET_SECONDS: Final = 2.0
"""How long nothing is left before the run is over: a failed reservation may be restarted soon."""
MOST_SETTLE_SECONDS: Final = 180.0
PATIENCE_SECONDS: Final = 5.0
SHORT_SECONDS: Final = {"brief": 0.01, "middle": 1.5, "long": 14.0}
FULL_SECONDS: Final = {"brief": 0.01, "middle": 3.0, "long": 30.0}
"""How long commands work, in a short seed and in one at full times."""
LENGTHS: Final = {"brief": 4, "middle": 3, "long": 3}
"""Length → weight."""
FLAGS: Final = {"": 8, "deaf": 2, "polite": 2, "daemon": 3, "bare": 3, "deaf,daemon": 1}
SYSTEMS: Final = {"lab": 4, "brief": 2, "calm": 3, "machines": 3}
IN_GANG: Final = 0.12
FAILS: Final = 0.1
CODE: Final = 3
"""The exit code of a command that fails."""
CANCELLED: Final = 0.08
MOST_LATE: Final = 0.9
"""Part of the faults' time in which commands are submitted."""


@dataclass
class CommandVerdict(Verdict):
    """The result of one seed of commands."""

    runs: int = 0
    whys: Counter[str] = field(default_factory=Counter)

    @override
    def describe(self) -> str:
        ends = ", ".join(f"{count} {phase}" for phase, count in sorted(self.ends.items()))
        return (
            f"seed {self.seed}: {len(self.faults)} faults, {self.reservations} accepted ({ends}), {self.runs} runs "
            f"({describe_counts(self.whys)}), quiet after {self.settled_seconds:.1f} s: "
            + (f"{len(self.violations)} VIOLATIONS" if self.violations else "kept")
        )


def make_commands(seed: int, count: int, seconds: float, lines: Path, *, is_full: bool) -> list[dict[str, Any]]:
    """Return the requests, by the random seed. `after`: seconds until the request is sent; `cancel_after`: until it is
    cancelled; None: never.
    """
    dice = random.Random(seed)
    lengths = FULL_SECONDS if is_full else SHORT_SECONDS
    found = []
    for number in range(count):
        system, length, flags = (_draw(dice, each) for each in (SYSTEMS, LENGTHS, FLAGS))
        works, code = lengths[length] * dice.uniform(0.7, 1), CODE if dice.random() < FAILS else 0
        argv = [sys.executable, "-I", "-S", workload.__file__, str(lines), flags, f"{works:.3f}", str(code)]
        document: dict[str, Any] = {"id": f"c{seed}-{number}", "system": system, "run": {"argv": argv, "grace": 1.5}}
        if dice.random() < IN_GANG:
            document["components"] = [{"name": "rank", "count": dice.choice([2, 3])}]
        if code == 0 and dice.random() < 0.3:
            document["restart_policy"] = "on_failure"
        after = 0.0 if dice.random() < 0.4 else dice.uniform(0, MOST_LATE * seconds)
        cancel_after = after + dice.uniform(0.5, 8) if dice.random() < CANCELLED else None
        found.append({"document": document, "after": after, "cancel_after": cancel_after})
    return found


def _draw(dice: random.Random, weights: Mapping[str, int]) -> str:
    return dice.choices(list(weights), list(weights.values()))[0]


class Submitter:
    """Sends the requests when they are due, again and again until they are answered, within `with`."""

    def __init__(self, client: Client, requests: Sequence[Mapping[str, Any]]) -> None:
        self._client, self._requests = client, list(requests)
        self._cancels = [each for each in requests if each["cancel_after"] is not None]
        self.accepted: set[str] = set()
        self.refused: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="submitter", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def is_done(self) -> bool:
        """Whether all requests were answered."""
        return not self._requests

    def _work(self) -> None:
        began = time.monotonic()
        while not self._over.wait(0.1):
            elapsed = time.monotonic() - began
            if due := [each for each in self._requests if each["after"] <= elapsed][:10]:
                self._submit(due)
            for each in [each for each in self._cancels if each["cancel_after"] <= elapsed]:
                self._cancel(each)

    def _submit(self, due: Sequence[Mapping[str, Any]]) -> None:
        try:
            answers = self._client.reserve_many([each["document"] for each in due], timeout=PATIENCE_SECONDS)
        except LeaseholdError:
            return
        for request, answer in zip(due, answers, strict=True):
            if answer.ok:
                self.accepted.add(request["document"]["id"])
                self._requests.remove(request)
            elif answer.errors:
                self.refused.append(f"{request['document']['id']} was refused: {answer.errors}")
                self._requests.remove(request)

    def _cancel(self, request: Mapping[str, Any]) -> None:
        # A cancellation without an answer is not repeated: the command then ends by itself.
        with suppress(LeaseholdError):
            self._client.cancel(request["document"]["id"], timeout=PATIENCE_SECONDS)
        self._cancels.remove(request)


def run_command_seed(
    folder: Path,
    database: Database,
    seed: int,
    *,
    count: int = COUNT,
    seconds: float = 30.0,
    off: str | None = None,
    only: Sequence[str] = (),
    is_full: bool = False,
) -> CommandVerdict:
    """Run one seed on its own stack and return the verdict. The files of the run stay in `folder`.

    `count`: number of reservations. `seconds`: duration of the faults. `off`: a guard that is switched off. `only`: the
    faults to inject; default: all. `is_full`: commands and stops take their full times.
    """
    folder.mkdir(exist_ok=True)
    with CommandHosts(folder, database, off) as hosts:
        # Commands without a deadline have to run for longer than the checker permits after it.
        requests = make_commands(seed, count, seconds, hosts.lines, is_full=is_full or off == "deadline")
        stops = BEYOND_DEADLINE_SECONDS if off == "deadline" else FULL_STOP_SECONDS if is_full else STOP_SECONDS
        nemesis = CommandNemesis(hosts, seed, seconds, only, stops)
        login = hosts.environment["LEASEHOLD_ACCESS__PRINCIPAL"], hosts.environment["LEASEHOLD_ACCESS__KEY"]
        client = Client(hosts.redis_url("leasehold"), principal=login[0], key=login[1])
        with client, Submitter(client, requests) as submitter:
            wait_for(hosts.list_left, "the first command")
            with nemesis:
                threading.Event().wait(seconds)
            settled = _settle(hosts, submitter)
        verdict = _judge(hosts, submitter, seed, settled)
        verdict.faults, verdict.struck = nemesis.faults, count_struck(hosts.points)
        (folder / "faults.txt").write_text("\n".join(nemesis.faults))
    return verdict


def _settle(hosts: CommandHosts, submitter: Submitter) -> float:
    """Wait until all reservations have ended and no command runs; return the seconds.

    The wait ends when nothing has changed for SETTLE_SECONDS, and after MOST_SETTLE_SECONDS at the latest.
    """
    began, pause = time.monotonic(), threading.Event()
    state, changed_at = None, began
    while (now := time.monotonic()) < min(changed_at + SETTLE_SECONDS, began + MOST_SETTLE_SECONDS):
        hosts.go_on()
        found = _find_state(hosts)
        if found is not None and found != state:
            state, changed_at = found, now
        if submitter.is_done and found == (0, 0) and now >= changed_at + QUIET_SECONDS:
            break
        pause.wait(0.3)
    return time.monotonic() - began


def _find_state(hosts: CommandHosts) -> tuple[int, int] | None:
    """Return the number of reservations that have not ended, and that of the processes of commands."""
    try:
        phases = hosts.services.ports.store.count_phases()
    except StoreUnavailableError:
        return None
    return sum(number for phase, number in phases.items() if phase not in ENDED), len(hosts.list_left())


def _judge(hosts: CommandHosts, submitter: Submitter, seed: int, settled: float) -> CommandVerdict:
    evidence = gather_commands(hosts, submitter.accepted)
    return CommandVerdict(
        seed=seed,
        violations=[*find_command_violations(evidence), *submitter.refused],
        reservations=len(evidence.accepted),
        ends=dict(Counter(row.phase for row in evidence.rows.values())),
        whys=Counter(each.why or each.state for each in evidence.executions),
        runs=len(evidence.executions),
        settled_seconds=settled,
    )


def gather_commands(hosts: CommandHosts, accepted: set[str]) -> CommandEvidence:
    """Read the evidence of a run from its files and its database."""
    store = hosts.services.ports.store
    rows = store.find_reservations(ids=sorted(accepted), limit=len(accepted) + 1)
    lines = [line for found in read_lines(hosts.lines).values() for line in found]
    pools = {slot.id: slot.pool for slot in store.find_slots()}
    over = read_boot_clock()
    ends = [over if each.how == "stop" else float("inf") for each in hosts.strikes]
    return CommandEvidence(
        accepted=accepted,
        rows={row.id: row for row in rows},
        executions=[each for name in sorted(accepted) for each in store.find_executions(name)],
        lines=sorted(lines, key=lambda line: line["at"]),
        notes=read_lines(hosts.notes),
        machines={host: f"m-{host}" for host in STATIC_HOSTS},
        offline={slot: POOLS[pool]["offline_timeout"] for slot, pool in pools.items()},
        blows=[
            Blow(each.host, each.part, each.how, each.at, end if each.until is None else each.until, each.pid)
            for each, end in zip(hosts.strikes, ends, strict=True)
        ],
        unconfirmed=frozenset(
            event.reservation
            for event in read_events(store)
            if event.reservation is not None and event.detail.get("reason") == "unconfirmed"
        ),
        left=[f"process {each.pid}" for each in hosts.list_left()],
    )
