"""The evidence of a chaos run: what its files, SQL and the emulator contain after the run."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, cast

from scheduler.model.events import Event
from scheduler.model.slots import Slot
from scheduler.operations.membership import CHECK_SECONDS, RESTORED
from scheduler.ports import Store
from tests.chaos.witness import ENDS, MACHINES, TICKS, read_events, recall_events

RESTORES: Final = "restores.jsonl"
LEASE_SECONDS: Final = 6
"""Duration of a renewal by the rules of the run."""
UNDER_WAY: Final = frozenset({"launching", "booting", "binding", "draining", "terminating", "stopping"})
"""States of slots that have to change, with that of `find_state`."""
HANDS: Final = "hands.jsonl"
"""File with the machines that an operator stopped or started without Leasehold."""
HOLDERS: Final = "holders"
"""The principal of the holder processes."""
GANGS: Final = "gang"
"""The pool in which every reservation is a gang, so that every request for several machines is for a gang."""

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
    """Reservations that ended at some time; a restore may have removed the end from SQL. They are known from events, or
    because their holder saw the end in the view.
    """
    restored: dict[str, float] = field(default_factory=dict)
    """Reservation that a restore cancelled as lost → when a client first received its acceptance."""
    resubmitted: set[str] = field(default_factory=set)
    """Reservations that had not ended before a restore, and were accepted as new ones after it."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Gang → number of machines that it needs at the same time."""
    limits: dict[str, int] = field(default_factory=dict)
    """Pool → most slots that it may have, by the rules."""
    kept: dict[str, str] = field(default_factory=dict)
    """Machine that stays stopped after the run → its slot, by SQL."""
    bindings: list[Line] = field(default_factory=list)
    """Slot, epoch and machine, each time that SQL was seen with another machine of a slot, with the time (`seen`)."""
    adopted: set[tuple[str, int]] = field(default_factory=set)
    """Slot and epoch in which the slot adopted a machine that was launched for another slot."""
    lives: list[Line] = field(default_factory=list)
    """Begin and end of each of EC2's machines."""
    handled: set[str] = field(default_factory=set)
    """Machines that an operator stopped or started without Leasehold."""
    ledger: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """The least seconds of the machines of slots by the events in SQL, their seconds in the cost ledger, and the most
    seconds.
    """


def gather(folder: Path, store: Store, machines: Iterable[Line], lives: Iterable[Line] = ()) -> Evidence:
    """Read the evidence of a run from its folder, its database, and the emulator's machines and their lives."""
    lines = [line for file in sorted(folder.glob("holders-*.jsonl")) for line in _read_lines(file)]
    events = recall_events(folder, store)
    ended_before = _find_ended(events)
    accepted: dict[str, float] = {}
    for line in lines:
        if line["event"] == "accepted":
            accepted[line["reservation"]] = min(line["at"], accepted.get(line["reservation"], line["at"]))
    rows, slots = store.find_reservations(ids=sorted(accepted), limit=len(accepted) + 1), store.find_slots()
    return Evidence(
        accepted=set(accepted),
        phases={row.id: row.phase for row in rows},
        slots={slot.id: find_state(slot) for slot in slots},
        uses=[line for line in lines if line["event"] == "use"],
        calls=[line for line in _read_lines(folder / "calls.jsonl") if "action" in line],
        machines=list(machines),
        launching=sum(event.name == "slot_launching" for event in events),
        hostile=list(_find_hostile(events, store)),
        ticks=list(_read_lines(folder / TICKS)),
        terms=[cast("int", event.detail["term"]) for event in events if "term" in event.detail],
        restores=[_read_restoration(line) for line in _read_lines(folder / RESTORES)],
        ended={event.reservation for event in events if event.name in ENDS and event.reservation is not None}
        | {line["reservation"] for line in lines if line["event"] == "ended"},
        restored={
            row.id: accepted[row.id]
            for row in rows
            if row.phase == "cancelled" and row.reason == RESTORED and row.id not in ended_before
        },
        resubmitted=_find_resubmitted(events),
        sizes=dict(_read_sizes(folder)),
        limits={name: pool.most_slots for name, pool in store.load_rules().rules.pools.items()},
        kept={slot.instance_id: slot.id for slot in slots if find_state(slot) == "stopped" and slot.instance_id},
        bindings=list(_read_lines(folder / MACHINES)),
        adopted={
            (event.slot, cast("int", event.detail["epoch"]))
            for event in events
            if event.name == "slot_adopted" and event.slot is not None
        },
        lives=list(lives),
        handled={line["machine"] for line in _read_lines(folder / HANDS)},
        ledger=_read_ledger(store),
    )


def find_state(slot: Slot) -> str:
    """Return the state of a slot; `stopping` while the stop of its machine is not confirmed."""
    return "stopping" if slot.state == "stopped" and slot.power is not None else slot.state


def _read_sizes(folder: Path) -> Iterator[tuple[str, int]]:
    for file in folder.glob("requests-*.json"):
        for request in json.loads(file.read_text()):
            components = request["document"].get("components", ())
            yield request["id"], max(1, sum(each["count"] for each in components))


def _read_ledger(store: Store) -> tuple[float, float, float]:
    """Return the least seconds of machines by the events in SQL, the seconds in the cost ledger, and the most seconds.

    A slot has its machine from the answer to the launch, or from its adoption, until it is empty. A slot that was given
    up before the answer may have got its machine at any time since then. Machines without a slot are left out.
    """
    began = store.now()
    booked = sum(cost.seconds for cost in store.read_costs() if cost.kind != "unbound")
    ended = store.now()
    since: dict[str, tuple[float, bool]] = {}
    least = most = 0.0
    for event in read_events(store):
        slot, before = event.slot or "", event.detail.get("from")
        if event.name == "slot_adopted" or (event.name == "slot_booting" and before == "launching"):
            since[slot] = event.at, True
        elif event.name == "slot_terminating" and before == "launching":
            since[slot] = event.at, False
        elif event.name == "slot_empty" and slot in since:
            at, is_sure = since.pop(slot)
            least, most = least + (event.at - at if is_sure else 0.0), most + event.at - at
    for at, is_sure in since.values():
        least, most = least + (began - at if is_sure else 0.0), most + ended - at
    return least, booked, most


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
