"""The promises about machines: launches one by one and in batches, starts and stops, terminations, and their costs."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tests.chaos.evidence import GANGS, UNDER_WAY, Evidence, Line, Restoration

INEXACT_SECONDS = 0.5
"""By how much all intervals of the cost ledger together may differ from the events about slots."""


def find_machine_violations(evidence: Evidence, uses: Sequence[Line]) -> Iterator[str]:
    """Yield a line for each broken promise about machines. `uses`: those of leases that no restore lost."""
    yield from _doubled_launches(evidence)
    yield from _unknown_to_holders(uses)
    yield from _badly_bound(evidence, uses)
    yield from _overlapping_machines(evidence)
    yield from _broken_gangs(evidence)
    yield from _leaked(evidence)
    yield from _undone(evidence)
    yield from _ended_under_holders(evidence, uses)
    yield from _stopped_under_holders(evidence, uses)
    yield from _badly_booked(evidence)


def _unknown_to_holders(uses: Iterable[Line]) -> Iterator[str]:
    """Yield holders that used a lease without knowing its machine."""
    for reservation, slot in sorted({(use["reservation"], use["slot"]) for use in uses if use["machine"] is None}):
        yield f"{reservation} used slot {slot} without its machine"


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


def _leaked(evidence: Evidence) -> Iterator[str]:
    """Yield machines that are not terminated after the run, except those of stopped slots, which must be stopped."""
    stopped = set[str]()
    for each in evidence.machines:
        if each["state"] == "stopped" and each["id"] in evidence.kept:
            stopped.add(each["id"])
        elif each["state"] != "terminated":
            yield f"machine {each['id']} of slot {each['tags'].get('leasehold:slot')} is {each['state']}"
    yield from (f"slot {slot} is stopped without {name}" for name, slot in evidence.kept.items() if name not in stopped)


def _undone(evidence: Evidence) -> Iterator[str]:
    """Yield slots that still wait for a call or a change of their machine after the run, and slots beyond a pool's
    maximum.
    """
    for name, state in sorted(evidence.slots.items()):
        if state in UNDER_WAY:
            yield f"slot {name} is {state}"
    sizes = Counter(name.rpartition("-")[0] for name in evidence.slots)
    for pool, size in sorted(sizes.items()):
        if size > (most := evidence.limits.get(pool, size)):
            yield f"pool {pool} has {size} slots, and at most {most} are permitted"


def _ended_under_holders(evidence: Evidence, uses: Sequence[Line]) -> Iterator[str]:
    """Yield machines that Leasehold terminated while a holder used them by a valid lease.

    A restore may put a machine that has ended since the backup back on its slot (docs/reference/consistency.md).
    """
    ended: dict[str, float] = {}
    for call in evidence.calls:
        if call["action"] == "TerminateInstances" and call["code"] is None:
            for machine in call["instances"]:
                ended.setdefault(machine, call["time"])
    late = {
        (use["machine"], use["reservation"])
        for use in uses
        if use["at"] > (at := ended.get(use["machine"], 1e18)) and not _is_undone(evidence, at, use)
    }
    for machine, reservation in sorted(late):
        yield f"machine {machine} was terminated while {reservation} held it"


def _list_bound(evidence: Evidence, uses: Iterable[Line] = ()) -> Iterator[tuple[int, str, int | None, str]]:
    """Yield (number of the last restore before, slot, epoch, machine) for each machine that was seen on a slot.

    A restore may put an earlier machine back on its slot, and a machine that it lost may be adopted by another slot. So
    what was seen before a restore and after it is compared separately.
    """
    seen = [(each["seen"], each["slot"], each["epoch"], each["machine"]) for each in evidence.bindings]
    for at, slot, epoch, machine in [*seen, *((use["at"], use["slot"], None, use["machine"]) for use in uses)]:
        if machine is not None and not any(each.marked <= at <= each.ended for each in evidence.restores):
            yield _count_before(evidence.restores, at), slot, epoch, machine


def _count_before(restores: Iterable[Restoration], at: float) -> int:
    return sum(each.ended < at for each in restores)


def _badly_bound(evidence: Evidence, uses: Iterable[Line]) -> Iterator[str]:
    """Yield machines that were on several slots, epochs of a slot with several machines, and started machines that were
    on no slot.
    """
    slots: dict[tuple[int, str], set[str]] = defaultdict(set)
    machines: dict[tuple[int, str, int], set[str]] = defaultdict(set)
    for era, slot, epoch, machine in _list_bound(evidence, uses):
        slots[era, machine].add(slot)
        if epoch is not None:
            machines[era, slot, epoch].add(machine)
    for (_, machine), found in sorted(slots.items()):
        if len(found) > 1:
            yield f"machine {machine} was on the slots {', '.join(sorted(found))}"
    for (_, slot, epoch), found in sorted(machines.items()):
        if len(found) > 1:
            yield f"slot {slot} had the machines {', '.join(sorted(found))} in epoch {epoch}"
    bound = {each["machine"] for each in evidence.bindings}
    started = {name for call in evidence.calls if is_done(call, "StartInstances") for name in call["instances"]}
    yield from (f"machine {name} was started, and no slot had it" for name in sorted(started - bound))


def _overlapping_machines(evidence: Evidence) -> Iterator[str]:
    """Yield slots that got a machine before their earlier one had ended, so that the pool had more machines than slots.

    A machine that a slot adopted was launched for another slot.
    """
    lives = {each["id"]: each for each in evidence.lives}
    found: dict[tuple[int, str], dict[str, Line]] = defaultdict(dict)
    for era, slot, epoch, machine in _list_bound(evidence):
        if machine in lives and (slot, epoch) not in evidence.adopted:
            found[era, slot][machine] = lives[machine]
    for (_, slot), machines in sorted(found.items()):
        for earlier, later in pairwise(sorted(machines.values(), key=lambda each: each["launched_at"])):
            if earlier["terminated_at"] is None or earlier["terminated_at"] > later["launched_at"]:
                yield f"slot {slot} had {earlier['id']} when {later['id']} was launched"


def _broken_gangs(evidence: Evidence) -> Iterator[str]:
    """Yield leases of gangs with too few machines, and uses of machines that were launched for an incomplete gang.

    The machines of a lease are those of its first use. A kill may have cut off its last one.
    """
    rounds: dict[tuple[str, int], dict[float, set[str]]] = defaultdict(lambda: defaultdict(set))
    for use in evidence.uses:
        rounds[use["reservation"], use["token"]][use["at"]].add(use["machine"])
    for (reservation, token), times in sorted(rounds.items()):
        wanted, got = evidence.sizes.get(reservation, 1), len(times[min(times)])
        if len(times) > 1 and got < wanted:
            yield f"{reservation}/{token} held {got} machines, and needs {wanted}"
    gangs = {each["id"] for each in evidence.machines if each["tags"].get("leasehold:pool") == GANGS}
    adopted = {each["machine"] for each in evidence.bindings if (each["slot"], each["epoch"]) in evidence.adopted}
    used = {use["machine"] for use in evidence.uses}
    for call in evidence.calls:
        if is_launch(call) and len(call["instances"]) < call["asked"]:
            for name in sorted(used & gangs.intersection(call["instances"]) - adopted):
                yield f"machine {name} of an incomplete gang was used"


def _is_undone(evidence: Evidence, at: float, use: Line) -> bool:
    """Return whether the database of this use was restored from a backup before the call at `at`."""
    return any(each.backup <= at <= each.ended and each.marked <= use["at"] for each in evidence.restores)


def _stopped_under_holders(evidence: Evidence, uses: Iterable[Line]) -> Iterator[str]:
    """Yield machines that Leasehold stopped, and that a holder used by a valid lease before they were started again.

    Machines that an operator stopped or started do not count. Repeats of a call by the SDK do not count either: such a
    call may come late (docs/reference/consistency.md).
    """
    powered: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for call in evidence.calls:
        is_stop = is_done(call, "StopInstances") and call["attempt"] == 1
        if is_stop or is_done(call, "StartInstances"):
            for machine in call["instances"]:
                powered[machine].append((call["time"], is_stop))
    broken = set[tuple[str, str]]()
    for use in uses:
        at, is_stop = max((each for each in powered[use["machine"]] if each[0] < use["at"]), default=(0.0, False))
        # A restore may bring back a lease that had ended before the stop.
        if is_stop and not _is_undone(evidence, at, use) and use["machine"] not in evidence.handled:
            broken.add((use["machine"], use["reservation"]))
    yield from (f"machine {machine} was stopped while {name} held it" for machine, name in sorted(broken))


def is_done(call: Line, action: str) -> bool:
    """Return whether this is a call that EC2 carried out, also if its answer was lost."""
    return bool(call["action"] == action and (call["code"] is None or call["lost"]))


def _badly_booked(evidence: Evidence) -> Iterator[str]:
    """Yield whether the cost ledger has other seconds than the machines of the slots by the events about them."""
    least, booked, most = evidence.ledger
    if not least - INEXACT_SECONDS <= booked <= most + INEXACT_SECONDS:
        yield f"the ledger has {booked:.3f} s of machines, and the slots had {least:.3f} to {most:.3f} s"
