"""The checker of a run of commands: which promises were broken, by the lines of the commands, SQL, and what the agents
noted. All times are those of the boot clock.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from scheduler.model.reservations import Reservation
from scheduler.model.runs import Execution
from scheduler.model.transitions import ENDED

AFTER_SECONDS: Final = 5.0
"""Time after its deadline in which a process of a command has to end."""
MARGIN_SECONDS: Final = 2.0
MOST_MARGIN: Final = 0.2
"""The margin of a deadline, by docs/reference/commands.md."""

Line = Mapping[str, Any]
Lease = tuple[str, str, str]
"""Reservation, component and fencing token."""


class Interval(NamedTuple):
    """A time in which something was the case."""

    begin: float
    end: float


class Blow(NamedTuple):
    """A kill or stop of a part of a host by the nemesis, see Strike. `end`: of a stop; infinite for a kill."""

    host: str
    part: str
    how: str
    begin: float
    end: float = inf
    pid: int = 0


@dataclass
class CommandEvidence:
    """What is known of a run of commands."""

    accepted: set[str] = field(default_factory=set)
    rows: Mapping[str, Reservation] = field(default_factory=dict)
    executions: Sequence[Execution] = ()
    lines: Sequence[Line] = ()
    """The lines of the commands, in the order of their times."""
    notes: Mapping[str, Sequence[Line]] = field(default_factory=dict)
    """Host → what its agents noted."""
    machines: Mapping[str, str] = field(default_factory=dict)
    """Static host → the id of its machine. The name of a launched machine is its id."""
    offline: Mapping[str, float] = field(default_factory=dict)
    """Slot → the offline timeout of its pool."""
    blows: Sequence[Blow] = ()
    unconfirmed: frozenset[str] = frozenset()
    """Reservations that lost a lease because no host had confirmed it. Such a lease ends before the deadline."""
    left: Sequence[str] = ()
    """Processes of commands that run after the run."""


def read_lines(folder: Path) -> dict[str, list[Line]]:
    """Return host → the lines of its file."""
    return {file.stem: [json.loads(each) for each in file.read_bytes().splitlines()] for file in folder.glob("*.jsonl")}


def find_command_violations(evidence: CommandEvidence) -> list[str]:
    """Return a line for each broken promise; [] if every promise was kept."""
    runs = group_runs(evidence.lines)
    return [
        *_find_lost(evidence, runs),
        *_find_repeated(runs),
        *_find_late(evidence, runs),
        *_find_outlived(evidence),
        *_find_misplaced(evidence, runs),
        *_find_overlaps(evidence, runs),
        *(f"{each} runs after the run" for each in evidence.left),
    ]


def group_runs(lines: Iterable[Line]) -> dict[Lease, list[Line]]:
    found: dict[Lease, list[Line]] = defaultdict(list)
    for line in lines:
        found[_find_lease(line)].append(line)
    return found


def _find_lease(line: Line) -> Lease:
    return line["reservation"], line["component"], str(line["token"])


def _describe(lease: Lease) -> str:
    return f"{lease[0]} {lease[1]} with token {lease[2]}"


def _find_lost(evidence: CommandEvidence, runs: Mapping[Lease, Sequence[Line]]) -> Iterator[str]:
    """Yield reservations that have not ended, and outcomes in SQL that are not those of the commands."""
    for name in sorted(evidence.accepted):
        row = evidence.rows.get(name)
        if row is None or row.phase not in ENDED:
            yield f"{name} was accepted and is {'unknown' if row is None else row.phase}"
        elif row.phase == "released" and not _has_ended_well(row, evidence.executions):
            yield f"{name} is released, and not all of its instances have exited with 0"
    for each in evidence.executions:
        lease = each.reservation, each.component, str(each.token)
        mains = [line for line in runs.get(lease, ()) if line["role"] == "main"]
        if each.why == "exited" and each.exit_code not in [line["code"] for line in mains if line["what"] == "end"]:
            yield f"{_describe(lease)} has the outcome exit {each.exit_code}, and did not exit with that"
        elif each.why == "signal" and not _was_hit(evidence, each, {line["pid"] for line in mains}):
            yield f"{_describe(lease)} has the outcome signal {each.signal}, and no fault sent it one"
        elif each.why in {"not_started", "out_of_memory", "limit"}:
            yield f"{_describe(lease)} has the outcome {each.why}: {each.error}"


def _has_ended_well(row: Reservation, executions: Iterable[Execution]) -> bool:
    own = [each for each in executions if (each.reservation, each.token) == (row.id, row.token)]
    return bool(own) and all((each.why, each.exit_code) == ("exited", 0) for each in own)


def _was_hit(evidence: CommandEvidence, execution: Execution, pids: set[int]) -> bool:
    """Return whether a fault killed this command. One without a line was killed before it could write any."""
    kills = [each for each in evidence.blows if (each.part, each.how) == ("command", "kill")]
    if pids:
        return any(each.pid in pids for each in kills)
    known = {line["pid"] for line in evidence.lines}
    return any(
        evidence.machines.get(each.host, each.host) == execution.machine and each.pid not in known for each in kills
    )


def _find_repeated(runs: Mapping[Lease, Sequence[Line]]) -> Iterator[str]:
    """Yield commands that began more than once under one token."""
    for lease, lines in runs.items():
        begins = [(line["host"], line["pid"], line["at"]) for line in lines if line["what"] == "begin"]
        if len(begins) > 1:
            yield f"{_describe(lease)} began {len(begins)} times: {begins}"


def _find_late(evidence: CommandEvidence, runs: Mapping[Lease, Sequence[Line]]) -> Iterator[str]:
    """Yield commands that went on for more than AFTER_SECONDS after their deadline, or began without one."""
    unwatched = find_unwatched(evidence)
    for lease, lines in runs.items():
        host, limit = lines[0]["host"], evidence.offline.get(lines[0]["slot"], inf)
        terms = [_read_term(note, limit) for note in evidence.notes.get(host, ()) if _is_term_of(note, lease)]
        if not terms:
            yield f"{_describe(lease)} began on {host}, whose agents got no answer for it"
            continue
        late = {}
        for line in lines:
            deadline = max((end for sent_at, end in terms if sent_at <= line["at"]), default=0.0)
            if line["at"] > deadline + AFTER_SECONDS and not _is_excused(line["at"], deadline, unwatched.get(host, ())):
                late[line["role"], line["pid"]] = line["at"] - deadline
        for (role, pid), seconds in late.items():
            yield f"{_describe(lease)} ({role} {pid} on {host}) wrote {seconds:.1f} s after its deadline"


def _is_term_of(note: Line, lease: Lease) -> bool:
    return note["what"] == "term" and _find_lease(note) == lease


def _read_term(note: Line, offline: float) -> tuple[float, float]:
    """Return when a request was sent, and the deadline that its answer gives."""
    seconds = min(inf if note["ttl"] is None else note["ttl"], offline)
    return note["sent_at"], note["sent_at"] + seconds - min(MARGIN_SECONDS, MOST_MARGIN * max(seconds, 0.0))


def _is_excused(at: float, deadline: float, unwatched: Iterable[Interval]) -> bool:
    """Return whether the time is one in which neither agent nor guard could end a command, or soon after."""
    return any(each.begin <= deadline + AFTER_SECONDS and at <= each.end + AFTER_SECONDS for each in unwatched)


def find_unwatched(evidence: CommandEvidence) -> dict[str, list[Interval]]:
    """Return host → the times in which neither its agent nor its guard ran, so that no process could end a command."""
    found: dict[str, list[Interval]] = {}
    for host in {each.host for each in evidence.blows}:
        own = [each for each in evidence.blows if each.host == host]
        agent = [_find_absence(each, evidence.notes.get(host, ())) for each in own if each.part in {"agent", "host"}]
        guard = [Interval(each.begin, each.end) for each in own if each.part == "host" or _is_guard_away(each, own)]
        both = (Interval(max(a.begin, b.begin), min(a.end, b.end)) for a in agent for b in guard)
        found[host] = [each for each in both if each.begin <= each.end]
    return found


def _is_guard_away(blow: Blow, blows: Iterable[Blow]) -> bool:
    """Return whether this blow leaves commands without a guard. The keeper ends what a killed guard leaves, unless it
    was killed too.
    """
    if blow.part != "guard":
        return False
    return blow.how == "stop" or any(each.part == "keeper" and each.begin <= blow.begin for each in blows)


def _find_absence(blow: Blow, notes: Iterable[Line]) -> Interval:
    """Return from when to when the agent that was hit did not run: a killed one until its successor has a guard."""
    if blow.how == "stop":
        return Interval(blow.begin, blow.end)
    later = [note["at"] for note in notes if note["what"] in {"runner", "connected"} and note["at"] > blow.begin]
    # The first note is that of the new agent's start, the second one that of its connection.
    return Interval(blow.begin, later[1] if len(later) > 1 else later[0] + AFTER_SECONDS if later else inf)


def _find_outlived(evidence: CommandEvidence) -> Iterator[str]:
    """Yield processes that went on for more than AFTER_SECONDS after their guard was killed, while its keeper ran."""
    for blow in evidence.blows:
        own = [each for each in evidence.blows if each.host == blow.host]
        if (blow.part, blow.how) != ("guard", "kill") or _is_guard_away(blow, own):
            continue
        stopped = [each for each in own if each.how == "stop" and each.part in {"host", "command"}]
        lines = [line for line in evidence.lines if line["host"] == blow.host]
        old = {(line["pid"], _find_lease(line)) for line in lines if line["at"] <= blow.begin}
        for line in lines:
            late = line["at"] - blow.begin
            is_stopped = any(each.begin <= line["at"] <= each.end + AFTER_SECONDS for each in stopped)
            if late > AFTER_SECONDS and (line["pid"], _find_lease(line)) in old and not is_stopped:
                name = f"{_describe(_find_lease(line))} ({line['role']} {line['pid']})"
                yield f"{name} wrote {late:.1f} s after its guard was killed"
                break


def _find_misplaced(evidence: CommandEvidence, runs: Mapping[Lease, Sequence[Line]]) -> Iterator[str]:
    """Yield commands that ran on a host that did not have their lease, and commands that the scheduler did not send."""
    known = {(each.reservation, each.component, str(each.token)): each for each in evidence.executions}
    for lease, lines in runs.items():
        for line in {(each["host"], each["slot"], each.get("forged", "")): each for each in lines}.values():
            execution, host = known.get(lease), line["host"]
            if line.get("forged"):
                yield f"{_describe(lease)} ran a forged command on {host}"
            elif execution is None:
                yield f"{_describe(lease)} ran on {host}, and no host has taken it"
            elif (execution.slot, execution.machine) != (line["slot"], evidence.machines.get(host, host)):
                yield f"{_describe(lease)} ran on {host}, and {execution.machine} on {execution.slot} has taken it"


def _find_overlaps(evidence: CommandEvidence, runs: Mapping[Lease, Sequence[Line]]) -> Iterator[str]:
    """Yield commands that went on after the next run of the same instance had begun, although their lease ended at its
    expiry, with the contact to the host, or by a report of the host.
    """
    unwatched = find_unwatched(evidence)
    instances: dict[tuple[str, str], list[Lease]] = defaultdict(list)
    for lease in runs:
        if lease[0] not in evidence.unconfirmed:
            instances[lease[:2]].append(lease)
    for leases in instances.values():
        leases.sort(key=lambda each: int(each[2] or 0))
        for older, newer in pairwise(leases):
            last, next_begin = runs[older][-1], min(line["at"] for line in runs[newer])
            host = last["host"]
            if last["at"] > next_begin and not _is_excused(last["at"], next_begin, unwatched.get(host, ())):
                yield (
                    f"{_describe(older)} wrote on {host} {last['at'] - next_begin:.1f} s after "
                    f"token {newer[2]} had begun on {runs[newer][0]['host']}"
                )
