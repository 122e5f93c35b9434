"""The checker: report which promises of Leasehold a chaos run broke.

It reads the emulator's call log and machines, the files of the holders, and SQL. It knows nothing of the faults.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Final, cast

from scheduler.model.events import Event
from scheduler.model.transitions import ENDED
from scheduler.operations.membership import CHECK_SECONDS
from scheduler.operations.restore import RESTORED
from scheduler.ports import Store
from tests.chaos.witness import ENDS, TICKS, recall_events

RESTORES: Final = "restores.jsonl"
LEASE_SECONDS: Final = 6
"""Duration of a renewal by the rules of the run."""
UNDER_WAY: Final = frozenset({"launching", "booting", "binding", "draining", "terminating"})
HOLDERS: Final = "holders"
"""The principal of the holder processes."""
CPUS: Final = {"shared": 4.0}
"""Pool whose machines are shared -> cpus of a machine. A machine of another pool takes one lease."""

Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Restoration:
    """A restore as an observer saw it. Times are those of the host's clock."""

    backup: float
    """When the backup began. The backup contains every reservation that was accepted before."""
    marked: float
    """When Redis got the mark that stops all processes, or when Redis was stopped."""
    ended: float
    term: int = 0
    token: int = 0
    """The numbers that the restore set: every later term and token is greater."""
    remembered: frozenset[str] = frozenset()
    """The reservations that had not ended, by the view in Redis when it got the mark."""
    held: frozenset[tuple[str, int]] = frozenset()
    """Reservation and token of each lease in the database after the restore."""
    fault: str | None = None
    """The last error; None if the restore succeeded."""

    @property
    def trusted_until(self) -> float:
        """Return when the last renewal from before the mark expires. A process checks the mark each CHECK_SECONDS."""
        return self.marked + CHECK_SECONDS + LEASE_SECONDS

    def has_lost(self, use: Line) -> bool:
        """Return whether this is the use of a lease that the restored database does not contain."""
        pair = use["reservation"], use["token"]
        return use["at"] >= self.marked and use["token"] <= self.token and pair not in self.held


@dataclass
class Evidence:
    """Everything that the checker knows about a run."""

    accepted: set[str] = field(default_factory=set)
    """Reservations whose acceptance a client received."""
    phases: dict[str, str] = field(default_factory=dict)
    """Reservation → phase, by SQL."""
    slots: dict[str, str] = field(default_factory=dict)
    """Slot → state, by SQL."""
    uses: list[Line] = field(default_factory=list)
    """One line for each time that a holder used a slot that it held."""
    calls: list[Line] = field(default_factory=list)
    """EC2's calls."""
    machines: list[Line] = field(default_factory=list)
    """EC2's machines, including terminated ones."""
    launching: int = 0
    """Number of launches that SQL contains."""
    terms: list[int] = field(default_factory=list)
    """The term of each event of a leader, in the order of SQL."""
    hostile: list[str] = field(default_factory=list)
    """One line for each change that the hostile producer caused."""
    ticks: list[Line] = field(default_factory=list)
    """Term and time of the last tick by SQL, at each observation, with the time of the observation (`seen`)."""
    restores: list[Restoration] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    """Reservations that ended at some time; a restore may have removed the end from SQL."""
    restored: dict[str, float] = field(default_factory=dict)
    """Reservation that a restore cancelled as lost → when a client first received its acceptance."""
    resubmitted: set[str] = field(default_factory=set)
    """Reservations that had not ended before a restore, and were accepted as new ones after it."""


def gather(folder: Path, store: Store, machines: Iterable[Line]) -> Evidence:
    """Read the evidence of a run from its folder, its database and the emulator's machines."""
    lines = [line for file in sorted(folder.glob("holders-*.jsonl")) for line in _read_lines(file)]
    events = recall_events(folder, store)
    ended_before = _find_ended(events)
    accepted: dict[str, float] = {}
    for line in lines:
        if line["event"] == "accepted":
            accepted[line["reservation"]] = min(line["at"], accepted.get(line["reservation"], line["at"]))
    rows = store.find_reservations(ids=sorted(accepted), limit=len(accepted) + 1)
    return Evidence(
        accepted=set(accepted),
        phases={row.id: row.phase for row in rows},
        slots={slot.id: slot.state for slot in store.find_slots()},
        uses=[line for line in lines if line["event"] == "use"],
        calls=[line for line in _read_lines(folder / "calls.jsonl") if "action" in line],
        machines=list(machines),
        launching=sum(event.name == "slot_launching" for event in events),
        hostile=list(_find_hostile(events, store)),
        ticks=list(_read_lines(folder / TICKS)),
        terms=[cast("int", event.detail["term"]) for event in events if "term" in event.detail],
        restores=[_read_restoration(line) for line in _read_lines(folder / RESTORES)],
        ended={event.reservation for event in events if event.name in ENDS and event.reservation is not None},
        restored={
            row.id: accepted[row.id]
            for row in rows
            if row.phase == "cancelled" and row.reason == RESTORED and row.id not in ended_before
        },
        resubmitted=_find_resubmitted(events),
    )


def _read_restoration(line: Line) -> Restoration:
    held = frozenset((reservation, token) for reservation, token in line.get("held", ()))
    remembered = frozenset(line["remembered"])
    numbers = {name: line[name] for name in ("backup", "marked", "ended", "term", "token", "fault") if name in line}
    return Restoration(**{**numbers, "remembered": remembered, "held": held})


def _find_resubmitted(events: Iterable[Event]) -> set[str]:
    is_after, ended, found = False, set[str](), set[str]()
    for event in events:
        is_after = is_after or event.name == RESTORED
        name = event.reservation or ""
        if event.name in ENDS:
            ended.add(name)
        elif event.name == "reservation_submitted" and is_after and name not in ended:
            found.add(name)
    return found


def _find_ended(events: Iterable[Event]) -> set[str]:
    """Return the reservations that ended before the first restore. The restore ends them again, as Redis has them."""
    before = takewhile(lambda event: event.name != RESTORED, events)
    return {event.reservation for event in before if event.name in ENDS and event.reservation is not None}


def _find_hostile(events: Iterable[Event], store: Store) -> Iterator[str]:
    """Yield a line for each change by another principal than the holders', and for each changed slot or account.

    Changes between the event of a restore and the first event of a leader belong to the restore, not to a message.
    """
    by_message = {"holder", "operator"}
    for event in events:
        if event.name == RESTORED or "term" in event.detail:
            by_message = {"holder"} if event.name == RESTORED else {"holder", "operator"}
        if event.principal not in {None, HOLDERS}:
            yield f"{event.principal} caused {event.name} of {event.reservation or event.slot}"
        elif event.cause in by_message and event.reservation and event.principal is None:
            yield f"an unsigned message caused {event.name} of {event.reservation}"
    yield from (f"slot {slot.id} was cordoned" for slot in store.find_slots() if slot.cordoned)
    yield from (f"account {account.id} was made" for account in store.find_accounts())
    yield from (f"{row.id} was submitted" for row in store.find_reservations(limit=10**6) if row.principal != HOLDERS)


def find_violations(evidence: Evidence) -> list[str]:
    """Return a line for each broken promise; [] if every promise was kept."""
    uses = list(_drop_lost(evidence))
    return [
        *_lost(evidence),
        *_badly_restored(evidence),
        *_used_after_restores(evidence),
        *_overlapping_holders(uses, evidence.restores),
        *_repeated_tokens(evidence.uses),
        *_doubled_launches(evidence),
        *_leaked(evidence.machines),
        *_undone(evidence.slots),
        *_ended_under_holders(uses, evidence.calls),
        *_returning_terms(evidence),
        *evidence.hostile,
    ]


def _lost(evidence: Evidence) -> Iterator[str]:
    """Yield accepted reservations that have not ended. One that ended before a restore may be unknown after it."""
    for name in sorted(evidence.accepted):
        phase = evidence.phases.get(name, "unknown")
        if phase not in ENDED and not (phase == "unknown" and evidence.restores and name in evidence.ended):
            yield f"{name} was accepted and is {phase}"


def _badly_restored(evidence: Evidence) -> Iterator[str]:
    """Yield failed restores, lost reservations that Redis remembered, and cancelled ones that the backup contained."""
    yield from (f"the restore failed: {each.fault}" for each in evidence.restores if each.fault is not None)
    remembered = {name for each in evidence.restores for name in each.remembered}
    for name in sorted(evidence.resubmitted & remembered):
        yield f"{name} was lost by the restore, and Redis remembered it"
    backup = min((each.backup for each in evidence.restores), default=float("inf"))
    for name, at in sorted(evidence.restored.items()):
        if at < backup:
            yield f"{name} was cancelled by the restore, and its backup contained it"


def _drop_lost(evidence: Evidence) -> Iterator[Line]:
    """Yield the uses of leases that no restore lost.

    The holder of a lost lease stops at a notice, or when its last renewal expires (`_used_after_restores`).
    """
    for use in evidence.uses:
        if not any(each.has_lost(use) for each in evidence.restores):
            yield use


def _used_after_restores(evidence: Evidence) -> Iterator[str]:
    """Yield leases that a restore lost and that were used after their last renewal expired."""
    for each in evidence.restores:
        late = {
            (use["reservation"], use["token"])
            for use in evidence.uses
            if use["at"] > each.trusted_until and each.has_lost(use)
        }
        for reservation, token in sorted(late):
            yield f"{reservation}/{token} was used after its expiry, and the restore had lost it"


def _overlapping_holders(uses: Sequence[Line], restores: Sequence[Restoration]) -> Iterator[str]:
    """Yield machines whose holders used more than the machine's capacity at one time.

    A lease is held from its first to its last use. If a restore undoes the release of a lease, the holder uses it again
    under the same token. So if a holder did not use a lease in the last second before a restore nor during it, the uses
    after the restore count as those of another lease.
    """
    times: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for use in uses:
        times[use["reservation"], use["token"], use["component"]].append(use["at"])

    def was_idle(lease: tuple[str, int, str], restore: Restoration) -> bool:
        return not any(restore.marked - 1 <= at <= restore.ended for at in times[lease])

    spans: dict[str, dict[tuple[str, int, str, int], list[Line]]] = defaultdict(lambda: defaultdict(list))
    for use in uses:
        lease = use["reservation"], use["token"], use["component"]
        earlier = sum(use["at"] > each.ended and was_idle(lease, each) for each in restores)
        spans[use["machine"]][*lease, earlier].append(use)
    for machine, holders in spans.items():
        yield from _overfull(machine, holders)


def _overfull(machine: str, holders: Mapping[tuple[str, int, str, int], Sequence[Line]]) -> Iterator[str]:
    changes: list[tuple[float, float, str]] = []
    pool = ""
    for (reservation, token, _, _), uses in holders.items():
        pool = uses[0]["slot"].rpartition("-")[0]
        amount = uses[0]["cpus"] if pool in CPUS else 1.0
        times = [use["at"] for use in uses]
        changes += [(min(times), amount, f"{reservation}/{token}"), (max(times), -amount, f"{reservation}/{token}")]
    held, present = 0.0, set[str]()
    # At equal times the end of a use sorts before a begin, so that successive holders do not overlap.
    for at, amount, holder in sorted(changes, key=lambda change: change[:2]):
        held += amount
        (present.add if amount > 0 else present.discard)(holder)
        if held > CPUS.get(pool, 1.0) + 1e-9:
            yield f"{machine} was held by {', '.join(sorted(present))} at {at:.3f}"
            return


def _repeated_tokens(uses: Sequence[Line]) -> Iterator[str]:
    """Yield tokens that belong to several reservations."""
    owners: dict[int, set[str]] = defaultdict(set)
    for use in uses:
        owners[use["token"]].add(use["reservation"])
    for token, names in sorted(owners.items()):
        if len(names) > 1:
            yield f"token {token} belongs to {', '.join(sorted(names))}"


def _doubled_launches(evidence: Evidence) -> Iterator[str]:
    """Yield more launches than client tokens, more machines than decisions, several machines of one launch, and batches
    that were launched by several requests.
    """
    launches = [call for call in evidence.calls if is_launch(call)]
    tokens = {call["token"] for call in launches}
    machines = sum(len(call["instances"]) for call in launches)
    if len(launches) != len(tokens):
        yield f"{len(launches)} launches were made under {len(tokens)} tokens"
    if machines > evidence.launching:
        yield f"{machines} machines were launched for {evidence.launching} decisions"
    ids = Counter(each["tags"]["leasehold:launch"] for each in evidence.machines if "leasehold:launch" in each["tags"])
    for launch, count in sorted(ids.items()):
        if count > 1:
            yield f"launch {launch} got {count} machines"
    token_of = {name: call["token"] for call in launches for name in call["instances"]}
    batches: dict[str, set[str]] = defaultdict(set)
    for each in evidence.machines:
        if (batch := each["tags"].get("leasehold:batch")) is not None:
            batches[batch].add(token_of.get(each["id"], ""))
    for batch, used in sorted(batches.items()):
        if len(used) > 1:
            yield f"batch {batch} was launched by {len(used)} requests"


def is_launch(call: Line) -> bool:
    """Return whether EC2 made a machine for this call, and not for an earlier call with the same token."""
    return call["action"] in {"RunInstances", "CreateFleet"} and bool(call["instances"]) and not call["replayed"]


def _leaked(machines: Iterable[Line]) -> Iterator[str]:
    """Yield machines that are not terminated after the run."""
    for each in machines:
        if each["state"] != "terminated":
            yield f"machine {each['id']} of slot {each['tags'].get('leasehold:slot')} is {each['state']}"


def _undone(slots: Mapping[str, str]) -> Iterator[str]:
    """Yield slots that still wait for a launch or a termination after the run."""
    for name, state in sorted(slots.items()):
        if state in UNDER_WAY:
            yield f"slot {name} is {state}"


def _ended_under_holders(uses: Sequence[Line], calls: Sequence[Line]) -> Iterator[str]:
    """Yield machines that Leasehold terminated while a holder used them by a valid lease."""
    ended: dict[str, float] = {}
    for call in calls:
        if call["action"] == "TerminateInstances" and call["code"] is None:
            for machine in call["instances"]:
                ended.setdefault(machine, call["time"])
    late = {(use["machine"], use["reservation"]) for use in uses if use["at"] > ended.get(use["machine"], 1e18)}
    for machine, reservation in sorted(late):
        yield f"machine {machine} was terminated while {reservation} held it"


def _returning_terms(evidence: Evidence) -> Iterator[str]:
    """Yield a term or a time of the last tick that is lower than one before: a deposed leader has written.

    During a restore SQL shows the numbers of the backup; after it every number is higher than all before.
    """
    for before, after in pairwise(evidence.terms):
        if after < before:
            yield f"a leader of term {after} wrote after one of term {before}"
            break
    for earlier, later in pairwise(evidence.ticks):
        if (later["term"], later["at"]) < (earlier["term"], earlier["at"]) or later["at"] < earlier["at"]:
            if any(earlier["seen"] <= each.ended and each.marked <= later["seen"] for each in evidence.restores):
                continue
            yield f"the last tick went back from {earlier} to {later}"
            break
    for each in evidence.restores:
        highest = max((tick["term"] for tick in evidence.ticks if tick["seen"] < each.marked), default=0)
        later_terms = [tick["term"] for tick in evidence.ticks if tick["seen"] > each.ended]
        if each.fault is None and min(later_terms, default=highest + 1) <= highest:
            yield f"after the restore term {min(later_terms)} is used again: {highest} was the highest before"


def _read_lines(file: Path) -> Iterator[Line]:
    """Yield the lines of a file, except a last one that a kill cut off."""
    if not file.exists():
        return
    for line in file.read_bytes().split(b"\n"):
        try:
            found: Line = json.loads(line)
        except ValueError:
            continue
        yield found
