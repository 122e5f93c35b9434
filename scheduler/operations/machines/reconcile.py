"""Reconcile: compare the machines in EC2 with the slots in SQL, so that no machine keeps running without a slot.

EC2 is listed first, then SQL is read. A launch is stored before it is sent to EC2, so SQL has the launch of each listed
machine. Therefore a machine whose launch is answered in between never counts as one without a slot. Every step may run
twice or in two processes: rows are locked and tested again before they change, and terminating a machine that is gone
changes nothing. Source: Arvados (restart of the scheduler).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf

import msgspec

from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.pools import slot_ids
from scheduler.model.rules import Rules
from scheduler.model.slots import ADOPTED, Machine, Slot, slot_order
from scheduler.model.transitions import INACTIVE
from scheduler.operations.machines.holds import end_quota_holds, list_quota_holds_of
from scheduler.operations.machines.launch import describe_machine, settle
from scheduler.operations.machines.twins import FRESH_SECONDS, leave_to_twin, watch_twins
from scheduler.operations.machines.unbound import (
    NOT_REFUSED,
    STRANGER_SECONDS,
    book_unbound,
    end_unbound,
    find_accounts,
    find_offering,
    load_prices,
    make_hold,
)
from scheduler.operations.membership import jump_above_tags, refuse_foreign_machines, split_foreign
from scheduler.operations.ports import Ports, announce, cloud_work
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.scaling.offerings import list_configured
from scheduler.ports import CloudError, ForeignMachineError, LaunchAnswer

ORPHAN_SECONDS = 300.0
"""Age in seconds from which a machine without a slot is terminated. A younger machine may get a slot, because the
answer to its launch may still arrive.
"""


class Reconciled(msgspec.Struct, frozen=True, kw_only=True):
    """What was done when EC2 was compared with the slots, as numbers of machines. `adopted`: number of machines that
    had no slot and were put on an empty one.
    """

    settled: int = 0
    """Number of machines that were stored on their slots, because the answers to their launches were lost."""
    adopted: int = 0
    ended: int = 0
    """Number of machines that were terminated: old ones without a slot, and second machines of one launch."""
    refused: int = 0
    """Number of machines that EC2 refused to terminate."""
    strangers: int = 0
    """Number of machines without a slot at the end of the sweep, including those just terminated."""
    trials: int = 0
    """How many of `strangers` are machines that `leasehold doctor` has launched and will end itself."""


class _Sorted(msgspec.Struct):
    """The machines that EC2 lists and no slot has, divided by what is done with them. `strangers`: the machines without
    a slot.
    """

    lost: list[tuple[Slot, Machine]] = []
    """Slots whose launch has no answer yet, each with the machine that EC2 lists for this launch."""
    extra: list[Machine] = []
    """Second machines of a launch whose slot has another machine. They are terminated at once."""
    strangers: list[Machine] = []


def reconcile(ports: Ports, orphan_seconds: float = ORPHAN_SECONDS) -> Reconciled:
    """Store machines on their slots if their launch answer was lost, and adopt or terminate machines without a slot.
    Return the numbers.

    A slot adopts a machine that is tagged with its id, if the slot is empty. Other machines are terminated when they
    are older than `orphan_seconds`; a machine of `leasehold doctor` gets the additional time of a boot. A second
    machine of one launch is terminated at once. Without any rules (a new database) nothing is changed. Machines of
    another cluster are not changed; if there are any, ForeignMachineError is raised at the end. It is also raised if
    another installation of this cluster, with a copy of the database, shows signs of life: then only machines that have
    a launch in this database are changed. Raises CloudError if EC2 refuses a call.

    If a machine's tag has a higher term or token than the database, the database is an older state, and its numbers
    jump as after a restore. Beside another installation this is done once, see `jump_above_tags`.
    """
    if not ports.store.rules_version():
        return Reconciled()
    machines = list(ports.fleet.sweep())  # promise: stray-machine-found
    row = ports.store.read_cluster()
    ours, foreign = split_foreign(machines, row.identity)
    slots = ports.store.find_slots()
    twin = watch_twins(ports, ours, slots, row.now)
    jump_above_tags(ports, ours, row, has_twin=twin is not None)
    if twin is not None:
        ours = leave_to_twin(ours, slots)  # promise: twin-spared
    rules = ports.rules()
    # Older versions launched machines without a tag for the cluster's identity. Such a machine counts as this
    # cluster's, and is tagged now if the permission to tag is there.
    launches = {slot.launch_id for slot in slots if slot.launch_id}
    unnamed = [each.id for each in ours if each.cluster_id is None and each.launch_id in launches]
    if unnamed:
        with suppress(CloudError):
            ports.fleet.claim(unnamed, row.identity)
    found, accounts = _sort(ours, slots), find_accounts(slots)
    for slot, machine in found.lost:
        settle(ports, rules, slot, LaunchAnswer(machines=(machine,)))
    # Listing all machines takes a while. If a machine ended meanwhile and its slot became empty, the slot must not
    # adopt the machine again.
    described = ports.fleet.describe([machine.id for machine in found.strangers]) if found.strangers else {}
    seen_again = (described.get(machine.id, machine) for machine in found.strangers)
    strangers = [machine for machine in seen_again if machine.state != "terminated"]
    left = _adopt(ports, rules, strangers, found.extra, accounts, orphan_seconds)
    refused = end_unbound(ports, rules, left.orphans, accounts)
    refused += end_unbound(ports, rules, left.repeated, accounts, is_repeated=True)
    reconciled = Reconciled(
        settled=len(found.lost),
        adopted=left.adopted,
        ended=len(left.orphans) + len(left.repeated) - refused,
        refused=refused,
        strangers=left.strangers,
        trials=left.trials,
    )
    refuse_foreign_machines(foreign, row.identity)
    if twin is not None:
        raise ForeignMachineError(
            f"EC2 machine {twin.id} has a sign of life of another installation of cluster {row.identity},"
            f" or this one before its Redis was emptied ({twin.alive}). Machines without a launch here are not touched"
            f" until all such signs are {FRESH_SECONDS / 60:.0f} minutes old. If another installation works with a copy"
            " of this database, give each of the two an aws.cluster of its own"
        )
    return reconciled


def _sort(machines: Iterable[Machine], slots: Sequence[Slot]) -> _Sorted:
    """Divide the listed machines that are on no slot into the groups of `_Sorted`. A machine belongs to the slot that
    has its launch id. The first such machine, running ones first, is in `lost` if the launch has no answer yet. Further
    machines of the launch are in `extra`. Machines whose launch has no slot are in `strangers`.

    Machines of a batch, which one request launches for several slots, are in no group while the answer to that request
    is not recorded. The request is sent again, and its answer gives the machines to slots. A restored backup may have
    the slots without the request.
    """
    in_place = {slot.instance_id for slot in slots}
    unsettled = {slot.batch for slot in slots if slot.state == "launching" or slot.launch_request is not None}
    unsettled.discard(None)
    by_launch = {slot.launch_id: slot for slot in slots if slot.launch_id and slot.state not in INACTIVE}
    found = _Sorted([], [], [])
    answered: set[str] = set()
    by_merit = sorted(
        (each for each in machines if each.id not in in_place and each.batch not in unsettled),
        key=lambda each: (each.state in {"stopping", "stopped"}, each.launched_at or 0.0, each.id),
    )
    for machine in by_merit:
        slot = by_launch.get(machine.launch_id or "")
        if slot is None:
            found.strangers.append(machine)
        elif slot.instance_id is not None or slot.id in answered:
            found.extra.append(machine)
        elif slot.state == "launching":
            answered.add(slot.id)
            found.lost.append((slot, machine))
    return found


class _Left(msgspec.Struct):
    """What remains after the adoption: `adopted` and `strangers` are numbers of machines. `orphans`: the machines that
    are terminated now. `repeated`: those that EC2 refused to terminate before, and that are tried again now.
    `trials`: the number of those machines of `leasehold doctor` that are not terminated now.
    """

    adopted: int
    strangers: int
    orphans: list[Machine]
    repeated: list[Machine]
    trials: int


def _adopt(
    ports: Ports,
    rules: Rules,
    strangers: Sequence[Machine],
    extra: Sequence[Machine],
    accounts: Mapping[str, str],
    orphan_seconds: float,
) -> _Left:
    """In one transaction: let empty slots adopt the machines that are tagged with their ids or were launched in a
    batch, book the time in which the machines had no slot, and store how many machines have no slot. `extra`: second
    machines of launches, which no slot adopts.
    """
    market = load_prices(ports, rules, [*strangers, *extra])
    with cloud_work(ports) as work:
        named = {machine.slot for machine in strangers if machine.slot}
        of_batches = Counter(machine.pool for machine in strangers if machine.batch and machine.pool)
        empty = ports.store.find_slots(states=["empty"], pools=sorted(of_batches)) if of_batches else []
        work.slots = work.transaction.load_slots(sorted({*named, *(slot.id for slot in empty)}))
        # Read after the empty slots were locked: another process may have put such a machine on one of them.
        placed = ports.store.find_slots_of_machines([machine.id for machine in strangers]) if of_batches else []
        wanted = (
            {slot: name for name, pool in rules.pools.items() for slot in slot_ids(name, pool)} if strangers else {}
        )
        taken = {slot.instance_id for slot in (*placed, *work.slots.values())}
        unbound = [each for each in strangers if each.id not in taken]
        left = [*(each for each in unbound if not _take_in(work, rules, wanted, each)), *extra]
        begins = {each.id: _find_end(each, rules, orphan_seconds) for each in left}
        begins |= {each.id: each.launched_at or -inf for each in extra}
        holds, is_fewer = _count_strangers(work, rules, left, begins)
        orphans, repeated = _list_due(left, holds, begins, work.now)
        for machine in orphans:
            if machine.state != "stopping" and machine not in extra:
                work.note(
                    "machine_orphaned",
                    {
                        "instance": machine.id,
                        "pool": machine.pool,
                        "slot": machine.slot,
                        "launch": machine.launch_id,
                    },
                    cause="cloud",
                )
        change_set = work.flush()
        book_unbound(work, rules, [*unbound, *extra], accounts, market)
    adopted = [event.slot for event in change_set.events if event.name == "slot_adopted" and event.slot]
    announce(ports, change_set, kick=bool(adopted) or is_fewer)
    if adopted:
        ports.dispatcher.send_checks(adopted)
    ended = {machine.id for machine in (*orphans, *repeated)}
    trials = sum(machine.is_trial and machine.id not in ended for machine in left)
    return _Left(len(adopted), len(left), orphans, repeated, trials)


def _find_end(machine: Machine, rules: Rules, orphan_seconds: float) -> float:
    """Return the time from which a machine without a slot is terminated: when its age is `orphan_seconds`. Return -inf
    if its age is unknown.

    For a machine that `leasehold doctor` has launched, the time is later: the time that its pool permits for a boot
    (`boot_timeout` + `binding_timeout`) is added, because `leasehold doctor` terminates the machine itself.
    """
    if machine.launched_at is None:
        return -inf
    pool = rules.pools.get(machine.pool or "") if machine.is_trial else None
    return machine.launched_at + orphan_seconds + (0.0 if pool is None else pool.boot_timeout + pool.binding_timeout)


def _list_due(
    left: Iterable[Machine], holds: Mapping[str, Hold], begins: Mapping[str, float], now: float
) -> tuple[list[Machine], list[Machine]]:
    """Return the machines that are to be terminated now: those that EC2 has not refused, and those that it refused
    before and whose pause is over. `holds`, `begins`: as in `_count_strangers`.
    """
    orphans, repeated = list[Machine](), list[Machine]()
    for machine in left:
        hold, begin = holds.get(machine.pool or ""), begins[machine.id]
        if begin > now:
            continue  # it may still get a slot
        if hold is None or not _is_refused(hold, begin):
            orphans.append(machine)
        elif now >= hold.decided_at + hold.delay:
            repeated.append(machine)
    return orphans, repeated


def _is_refused(hold: Hold, begin: float) -> bool:
    """Return whether EC2 has refused to terminate a machine without a slot that is to be terminated since `begin`.
    `hold`: the row that counts the machines without a slot of its pool.
    """
    return bool(hold.code) and begin <= hold.decided_at


def _take_in(work: UnitOfWork, rules: Rules, wanted: dict[str, str], machine: Machine) -> bool:
    """Put a machine that has no slot on an empty slot, if there is a suitable one. Return whether the machine is on a
    slot now. The suitable slot is the one that the machine's tags name. A machine of a batch has no such tag: it gets
    the first empty slot of its pool. `wanted`: id of each slot that the rules provide -> its pool; other slots take no
    machine. A machine that stops, or that `leasehold doctor` launched, gets no slot.
    """
    if machine.batch is not None:
        empty = (slot for slot in work.slots.values() if slot.state == "empty" and slot.pool == machine.pool)
        current = min(empty, key=lambda slot: slot_order(slot.id), default=None)
    else:
        current = work.slots.get(machine.slot or "")
    if current is None or machine.is_trial:
        return False
    is_its_slot = wanted.get(current.id) == machine.pool == current.pool
    if current.state != "empty" or not is_its_slot or machine.state in {"stopping", "stopped"}:
        return False
    # If the rules no longer list the offering, resources and labels are those of the pool.
    pool = rules.pools[current.pool]
    key = find_offering(pool, machine)
    choice = next((each for each in list_configured(pool) if each.key == key), None)
    capacity, labels = (choice.capacity, choice.labels) if choice else (pool.resources, pool.labels)
    work.move_slot(
        current,
        "booting",
        event="slot_adopted",
        epoch=current.epoch + 1,
        launch_id=machine.launch_id or machine.batch,
        launch_reason=ADOPTED,
        launched_at=work.now if machine.launched_at is None else machine.launched_at,
        last_seen=work.now,
        **describe_machine(machine, pool),
        offering=key,
        market=(choice.market if choice and choice.market else None) or machine.market,
        price=choice.price if choice else None,
        resources=None if capacity is None else dict(capacity),
        labels=dict(labels),
    )
    return True


def _count_strangers(
    work: UnitOfWork, rules: Rules, left: Sequence[Machine], begins: Mapping[str, float]
) -> tuple[dict[str, Hold], bool]:
    """Stage, for each pool, the number of its machines without a slot (`left`), which the launch limits count. Return
    the known rows by pool, and whether any pool has fewer of these machines now. `begins`: machine -> the time from
    which it is to be terminated.

    Before that, end launch back-offs for EC2 quotas in the pools of slots that adopted machines, if the pool has fewer
    active slots than when EC2 refused the launch. This must precede the write of the adopting slots: they count as
    active then, and would hide the lower number.
    """
    counts = Counter(machine.pool or "" for machine in left)
    pools = {hold_id(name, "strangers"): name for name in {*rules.pools, *counts}}
    adopted = {slot.pool for slot in work.slots.values() if slot.state == "booting"}
    known = work.transaction.load_holds(sorted([*pools, *list_quota_holds_of(rules, adopted)]))
    end_quota_holds(work, known)
    holds = {hold.pool: hold for hold in known.values() if hold.kind == "strangers"}
    refused = {
        each.pool or ""
        for each in left
        if each.state != "stopping" and (hold := holds.get(each.pool or "")) and _is_refused(hold, begins[each.id])
    }
    for name in sorted(pools.values()):
        hold, count = holds.get(name), counts[name]
        if count == 0 and hold is not None:
            work.delete(hold)
        elif hold is not None and hold.code and name not in refused:
            work.put(make_hold(name, count, msgspec.structs.replace(hold, **NOT_REFUSED), work.now))
        elif count and (hold is None or hold.active != count or hold.until - work.now <= STRANGER_SECONDS / 2):
            work.put(make_hold(name, count, hold, work.now))
    return holds, any(counts[name] < hold.active for name, hold in holds.items())
