"""The checker: looks at a run from outside, and reports which promises of Leasehold were broken.

It reads the emulator's call log and its machines, the holders' own files, and SQL; nothing of the run itself.
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
"""For how long a renewal holds, by the rules of the run."""
UNDER_WAY: Final = frozenset({"launching", "booting", "binding", "draining", "terminating"})
HOLDERS: Final = "holders"
"""The principal of the processes of holders."""
CPUS: Final = {"shared": 4.0}
"""Pools whose machines are shared, and the cpus of one; the others hold one lease a machine."""

Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Restoration:
    """A restore, as it was seen from outside. Times are the host's."""

    backup: float
    """When the backup began: what was accepted before is in it."""
    marked: float
    """When all processes were to stop their work: Redis had the mark, or was gone."""
    ended: float
    term: int = 0
    token: int = 0
    """The numbers to which it jumped: later ones are greater."""
    remembered: frozenset[str] = frozenset()
    """The reservations that were not over, as Redis knew when it had the mark."""
    held: frozenset[tuple[str, int]] = frozenset()
    """Reservation and token of the leases that the database knew afterwards."""
    fault: str | None = None
    """Why it never succeeded."""

    @property
    def trusted_until(self) -> float:
        """When the last renewal from before the mark is over. A process may overlook the mark for CHECK_SECONDS."""
        return self.marked + CHECK_SECONDS + LEASE_SECONDS

    def has_lost(self, use: Line) -> bool:
        """Whether this is the use of a lease that the restore took out of the database."""
        pair = use["reservation"], use["token"]
        return use["at"] >= self.marked and use["token"] <= self.token and pair not in self.held


@dataclass
class Evidence:
    """What is left of a run."""

    accepted: set[str] = field(default_factory=set)
    """Reservations whose acceptance a client received."""
    phases: dict[str, str] = field(default_factory=dict)
    """Reservation → phase, by SQL."""
    slots: dict[str, str] = field(default_factory=dict)
    """Slot → state, by SQL."""
    uses: list[Line] = field(default_factory=list)
    """What holders wrote each time they used a place that they held."""
    calls: list[Line] = field(default_factory=list)
    """EC2's calls."""
    machines: list[Line] = field(default_factory=list)
    """EC2's machines, terminated ones too."""
    launching: int = 0
    """Number of launches of slots in SQL."""
    terms: list[int] = field(default_factory=list)
    """The term of each of the leaders' events, in the order in which SQL has them."""
    hostile: list[str] = field(default_factory=list)
    """What a hostile producer brought about, a line for each."""
    ticks: list[Line] = field(default_factory=list)
    """Term and time of the last tick, as SQL had them each time it was looked at, and when that was (`seen`)."""
    restores: list[Restoration] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    """Reservations that ended at some time; a restore may have taken that out of SQL."""
    restored: dict[str, float] = field(default_factory=dict)
    """Reservation that was cancelled because a restore had lost it → when its acceptance was first reported."""
    resubmitted: set[str] = field(default_factory=set)
    """Reservations that were accepted as new ones after a restore, without having ended before."""


def gather(folder: Path, store: Store, machines: Iterable[Line]) -> Evidence:
    """Read everything that a run left."""
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
    """The reservations that ended before the first restore: Redis knows that, and the restore ends them again."""
    before = takewhile(lambda event: event.name != RESTORED, events)
    return {event.reservation for event in before if event.name in ENDS and event.reservation is not None}


def _find_hostile(events: Iterable[Event], store: Store) -> Iterator[str]:
    """Only messages of the holders' principal change anything, and no slot or account is touched.

    What a restore settles, between its event and the first one of a leader, no message has caused.
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
    """One line for each promise that was broken; [] when all were kept."""
    uses = list(_drop_lost(evidence))
    return [
        *_lost(evidence),
        *_badly_restored(evidence),
        *_used_after_restores(evidence),
        *_shared_places(uses),
        *_repeated_tokens(evidence.uses),
        *_doubled_launches(evidence),
        *_leaked(evidence.machines),
        *_undone(evidence.slots),
        *_ended_under_holders(uses, evidence.calls),
        *_returning_terms(evidence),
        *evidence.hostile,
    ]


def _lost(evidence: Evidence) -> Iterator[str]:
    """Every accepted reservation ends. One that ended before a restore may be unknown after it."""
    for name in sorted(evidence.accepted):
        phase = evidence.phases.get(name, "unknown")
        if phase not in ENDED and not (phase == "unknown" and evidence.restores and name in evidence.ended):
            yield f"{name} was accepted and is {phase}"


def _badly_restored(evidence: Evidence) -> Iterator[str]:
    """A restore succeeds; it loses nothing that Redis remembers, and cancels only what its backup does not know."""
    yield from (f"the restore failed: {each.fault}" for each in evidence.restores if each.fault is not None)
    remembered = {name for each in evidence.restores for name in each.remembered}
    for name in sorted(evidence.resubmitted & remembered):
        yield f"{name} was forgotten by the restore, and Redis remembered it"
    backup = min((each.backup for each in evidence.restores), default=float("inf"))
    for name, at in sorted(evidence.restored.items()):
        if at < backup:
            yield f"{name} was cancelled by the restore, and its backup knew it"


def _drop_lost(evidence: Evidence) -> Iterator[Line]:
    """The uses without the ones of leases that a restore had taken out of the database: their holders learn of that by
    a notice, or when their last renewal is over (`_used_after_restores`).
    """
    for use in evidence.uses:
        if not any(each.has_lost(use) for each in evidence.restores):
            yield use


def _used_after_restores(evidence: Evidence) -> Iterator[str]:
    """No holder uses a lease that a restore lost for longer than its last renewal holds."""
    for each in evidence.restores:
        late = {
            (use["reservation"], use["token"])
            for use in evidence.uses
            if use["at"] > each.trusted_until and each.has_lost(use)
        }
        for reservation, token in sorted(late):
            yield f"{reservation}/{token} was used after its time, and the restore had lost it"


def _shared_places(uses: Sequence[Line]) -> Iterator[str]:
    """No two holders with valid tokens on one place at once: no machine holds more than it can."""
    spans: dict[str, dict[tuple[str, int, str], list[Line]]] = defaultdict(lambda: defaultdict(list))
    for use in uses:
        spans[use["machine"]][use["reservation"], use["token"], use["component"]].append(use)
    for machine, holders in spans.items():
        yield from _overfull(machine, holders)


def _overfull(machine: str, holders: Mapping[tuple[str, int, str], Sequence[Line]]) -> Iterator[str]:
    changes: list[tuple[float, float, str]] = []
    pool = ""
    for (reservation, token, _), uses in holders.items():
        pool = uses[0]["slot"].rpartition("-")[0]
        amount = uses[0]["cpus"] if pool in CPUS else 1.0
        times = [use["at"] for use in uses]
        changes += [(min(times), amount, f"{reservation}/{token}"), (max(times), -amount, f"{reservation}/{token}")]
    held, present = 0.0, set[str]()
    # At one and the same instant who goes is before who comes: touching is not sharing.
    for at, amount, holder in sorted(changes, key=lambda change: change[:2]):
        held += amount
        (present.add if amount > 0 else present.discard)(holder)
        if held > CPUS.get(pool, 1.0) + 1e-9:
            yield f"{machine} was held by {', '.join(sorted(present))} at {at:.3f}"
            return


def _repeated_tokens(uses: Sequence[Line]) -> Iterator[str]:
    """A token always belongs to one reservation."""
    owners: dict[int, set[str]] = defaultdict(set)
    for use in uses:
        owners[use["token"]].add(use["reservation"])
    for token, names in sorted(owners.items()):
        if len(names) > 1:
            yield f"token {token} was given to {', '.join(sorted(names))}"


def _doubled_launches(evidence: Evidence) -> Iterator[str]:
    """Launches = distinct tokens, and one machine a launch: no more machines than SQL ever decided."""
    launches = [call for call in evidence.calls if is_launch(call)]
    tokens = {call["token"] for call in launches}
    machines = sum(len(call["instances"]) for call in launches)
    if machines != len(tokens):
        yield f"{machines} machines were launched under {len(tokens)} tokens"
    if machines > evidence.launching:
        yield f"{machines} machines were launched for {evidence.launching} decisions"
    ids = Counter(each["tags"].get("leasehold:launch") for each in evidence.machines)
    for launch, count in sorted(ids.items(), key=str):
        if count > 1:
            yield f"launch {launch} got {count} machines"


def is_launch(call: Line) -> bool:
    """Whether EC2 made a machine for this call, and not for an earlier one with the same token."""
    return call["action"] in {"RunInstances", "CreateFleet"} and bool(call["instances"]) and not call["replayed"]


def _leaked(machines: Iterable[Line]) -> Iterator[str]:
    """In the end no machine is left that costs money."""
    for each in machines:
        if each["state"] != "terminated":
            yield f"machine {each['id']} of slot {each['tags'].get('leasehold:slot')} is {each['state']}"


def _undone(slots: Mapping[str, str]) -> Iterator[str]:
    """What was decided is carried out: in the end no slot waits for a launch or a termination."""
    for name, state in sorted(slots.items()):
        if state in UNDER_WAY:
            yield f"slot {name} is {state}"


def _ended_under_holders(uses: Sequence[Line], calls: Sequence[Line]) -> Iterator[str]:
    """We end no machine on which a holder still works with a valid lease."""
    ended: dict[str, float] = {}
    for call in calls:
        if call["action"] == "TerminateInstances" and call["code"] is None:
            for machine in call["instances"]:
                ended.setdefault(machine, call["time"])
    late = {(use["machine"], use["reservation"]) for use in uses if use["at"] > ended.get(use["machine"], 1e18)}
    for machine, reservation in sorted(late):
        yield f"machine {machine} was ended while {reservation} held it"


def _returning_terms(evidence: Evidence) -> Iterator[str]:
    """Terms never go back, and neither does the time of the last tick: a deposed leader writes nothing.

    Within a restore SQL shows the numbers of the backup for a moment; afterwards they are higher than ever.
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
            yield f"after the restore term {min(later_terms)} came again: {highest} was the highest before"


def _read_lines(file: Path) -> Iterator[Line]:
    """The lines of a file; the last one may have been cut off by a kill."""
    if not file.exists():
        return
    for line in file.read_bytes().split(b"\n"):
        try:
            found: Line = json.loads(line)
        except ValueError:
            continue
        yield found
