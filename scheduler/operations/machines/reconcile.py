"""Reconcile: compare the machines in EC2 with the slots in SQL, so that no machine keeps running without a slot.

EC2 is listed first, then SQL is read. A launch is stored before it is sent to EC2, so SQL has the launch of each listed
machine. Therefore a machine whose launch is answered in between never counts as one without a slot. Every step may run
twice or in two processes: rows are locked and tested again before they change, and terminating a machine that is gone
changes nothing. Source: Arvados (restart of the scheduler).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.pools import Pool, slot_ids
from scheduler.model.rules import Rules
from scheduler.model.slots import ADOPTED, Machine, Slot, slot_order
from scheduler.model.transitions import INACTIVE
from scheduler.operations.machines.batch import is_of_batch
from scheduler.operations.machines.launch import describe_machine, end_quota_holds, list_quota_holds_of, settle_machine
from scheduler.operations.machines.unbound import book_unbound, end_unbound, find_accounts, find_offering, load_prices
from scheduler.operations.membership import refuse_foreign_machines, split_foreign
from scheduler.operations.ports import Ports, announce
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.scaling.offerings import list_configured
from scheduler.ports import CloudError

ORPHAN_SECONDS = 300.0
"""Age in seconds from which a machine without a slot is terminated. A younger machine may get a slot, because the
answer to its launch may still arrive.
"""
STRANGER_SECONDS = 180.0
"""A sweep lists the machines of the cluster in EC2. For this number of seconds after a sweep, the machines without a
slot that it found count towards `max_slots`.
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
    strangers: int = 0
    """Number of machines without a slot at the end of the sweep, including those just terminated."""


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
    another cluster are not changed; if there are any, ForeignMachineError is raised at the end. Raises CloudError if
    EC2 refuses a call.
    """
    if not ports.store.rules_version():
        return Reconciled()
    machines = list(ports.fleet.sweep())  # promise: stray-machine-found
    identity = ports.store.read_cluster().identity
    ours, foreign = split_foreign(machines, identity)
    reconciled = _reconcile_ours(ports, ours, identity, orphan_seconds)
    refuse_foreign_machines(foreign, identity)
    return reconciled


def _reconcile_ours(ports: Ports, machines: Sequence[Machine], identity: str, orphan_seconds: float) -> Reconciled:
    rules = ports.rules()
    slots = ports.store.find_slots()
    # Older versions launched machines without a tag for the cluster's identity. Such a machine counts as this
    # cluster's, and is tagged now if the permission to tag is there.
    launches = {slot.launch_id for slot in slots if slot.launch_id}
    unnamed = [each.id for each in machines if each.cluster_id is None and each.launch_id in launches]
    if unnamed:
        with suppress(CloudError):
            ports.fleet.claim(unnamed, identity)
    found, accounts = _sort(machines, slots), find_accounts(slots)
    for slot, machine in found.lost:
        settle_machine(ports, slot, machine)
    present = _look_again(ports, found.strangers)
    adopted, strangers, orphans = _adopt(ports, rules, present, accounts, orphan_seconds)
    ended = [*found.extra, *orphans]
    end_unbound(ports, rules, ended, accounts)
    return Reconciled(settled=len(found.lost), adopted=adopted, ended=len(ended), strangers=len(strangers))


def _sort(machines: Iterable[Machine], slots: Sequence[Slot]) -> _Sorted:
    """Divide the listed machines that are on no slot into the groups of `_Sorted`. A machine belongs to the slot that
    has its launch id. The first such machine, running ones first, is in `lost` if the launch has no answer yet. Further
    machines of the launch are in `extra`. Machines whose launch has no slot are in `strangers`.

    Machines of a batch, which one request launches for several slots, are in no group while the answer to that request
    is not recorded. The request is sent again, and its answer gives the machines to slots.
    """
    in_place = {slot.instance_id for slot in slots}
    unsettled = {slot.batch for slot in slots if is_of_batch(slot.launch_request)}
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


def _look_again(ports: Ports, strangers: Sequence[Machine]) -> list[Machine]:
    """Ask EC2 again about these machines without a slot, and return the machines that are not gone.

    Listing all machines takes a while. If a machine ended meanwhile and its slot became empty, the slot must not adopt
    the machine again.
    """
    present = ports.fleet.describe([machine.id for machine in strangers]) if strangers else {}
    found = (present.get(machine.id, machine) for machine in strangers)
    return [machine for machine in found if machine.state != "terminated"]


def _adopt(
    ports: Ports, rules: Rules, strangers: Sequence[Machine], accounts: Mapping[str, str], orphan_seconds: float
) -> tuple[int, list[Machine], list[Machine]]:
    """In one transaction: let empty slots adopt the machines that are tagged with their ids or were launched in a
    batch, book the time in which the machines had no slot, and store how many machines have no slot. Return three
    things: (1) the number of adopted machines; (2) the machines without a slot; (3) those of (2) that are old enough to
    be terminated.
    """
    market = load_prices(ports, rules, strangers)
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        named = {machine.slot for machine in strangers if machine.slot}
        of_batches = Counter(machine.pool for machine in strangers if machine.batch and machine.pool)
        empty = ports.store.find_slots(states=["empty"], pools=sorted(of_batches)) if of_batches else []
        work.slots = transaction.load_slots(sorted({*named, *(slot.id for slot in empty)}))
        # Read after the empty slots were locked: another process may have put such a machine on one of them.
        placed = ports.store.find_slots_of_machines([machine.id for machine in strangers]) if of_batches else []
        wanted = (
            {slot: name for name, pool in rules.pools.items() for slot in slot_ids(name, pool)} if strangers else {}
        )
        taken = {slot.instance_id for slot in (*placed, *work.slots.values())}
        unbound = [each for each in strangers if each.id not in taken]
        left = [each for each in unbound if not _take_in(work, rules, wanted, each)]
        is_fewer = _count_strangers(work, rules, left)
        orphans = [each for each in left if _is_old(each, rules, work.now, orphan_seconds)]
        for machine in orphans:
            if machine.state != "stopping":
                detail: dict[str, Any] = {"instance": machine.id, "pool": machine.pool, "slot": machine.slot}
                detail["launch"] = machine.launch_id
                work.add_event(Event(at=work.now, name="machine_orphaned", cause="cloud", detail=detail))
        change_set = work.flush()
        book_unbound(work, rules, unbound, accounts, market)
    adopted = [event.slot for event in change_set.events if event.name == "slot_adopted" and event.slot]
    announce(ports, change_set, kick=bool(adopted) or is_fewer)
    if adopted:
        ports.dispatcher.send_checks(adopted)
    return len(adopted), left, orphans


def _is_old(machine: Machine, rules: Rules, now: float, orphan_seconds: float) -> bool:
    """Return whether a machine without a slot is old enough to be terminated: its age is at least `orphan_seconds`, or
    is unknown.

    For a machine that `leasehold doctor` has launched, the limit is longer: the time that its pool permits for a boot
    (`boot_timeout` + `binding_timeout`) is added, because `leasehold doctor` terminates the machine itself.
    """
    if machine.launched_at is None:
        return True
    pool = rules.pools.get(machine.pool or "") if machine.is_trial else None
    boots = 0.0 if pool is None else pool.boot_timeout + pool.binding_timeout
    return now - machine.launched_at >= orphan_seconds + boots


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
    work.move_slot(
        current,
        "booting",
        event="slot_adopted",
        epoch=current.epoch + 1,
        launch_id=machine.launch_id or machine.batch,
        launch_reason=ADOPTED,
        launched_at=work.now if machine.launched_at is None else machine.launched_at,
        last_seen=work.now,
        **describe_machine(machine),
        **_describe_offering(rules.pools[current.pool], machine),
    )
    return True


def _describe_offering(pool: Pool, machine: Machine) -> dict[str, Any]:
    """Return the field values that a slot gets from the offering of the machine that it adopts. If the rules no longer
    list the offering, resources and labels are those of the pool.
    """
    key = find_offering(pool, machine)
    choice = next((each for each in list_configured(pool) if each.key == key), None)
    capacity, labels = (choice.capacity, choice.labels) if choice else (pool.resources, pool.labels)
    return {
        "offering": key,
        "market": (choice.market if choice and choice.market else None) or machine.market,
        "price": choice.price if choice else None,
        "resources": None if capacity is None else dict(capacity),
        "labels": dict(labels),
    }


def _count_strangers(work: UnitOfWork, rules: Rules, left: Iterable[Machine]) -> bool:
    """Stage, for each pool, the number of its machines without a slot (`left`), which the launch limits count. Return
    whether any pool has fewer of them now.

    Before that, end launch back-offs for EC2 quotas in the pools of slots that adopted machines, if the pool has fewer
    active slots than when EC2 refused the launch. This must precede the write of the adopting slots: they count as
    active then, and would hide the lower number.
    """
    counts = Counter(machine.pool or "" for machine in left)
    pools = {hold_id(name, "strangers"): name for name in {*rules.pools, *counts}}
    adopted = {slot.pool for slot in work.slots.values() if slot.state == "booting"}
    known = work.transaction.load_holds(sorted([*pools, *list_quota_holds_of(rules, adopted)]))
    end_quota_holds(work, known)
    known = {name: hold for name, hold in known.items() if hold.kind == "strangers"}
    for identity, name in sorted(pools.items()):
        hold, count = known.get(identity), counts[name]
        if count == 0 and hold is not None:
            work.delete(hold)
        elif count and (hold is None or hold.active != count or hold.until - work.now <= STRANGER_SECONDS / 2):
            work.put(_make_hold(identity, name, count, hold, work.now))
    return any(counts[hold.pool] < hold.active for hold in known.values())


def _make_hold(identity: str, pool: str, count: int, known: Hold | None, now: float) -> Hold:
    return Hold(
        version=known.version if known else 0,
        id=identity,
        pool=pool,
        kind="strangers",
        refused_at=known.refused_at if known else now,
        until=now + STRANGER_SECONDS,
        active=count,
    )
