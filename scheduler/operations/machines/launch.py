"""Launch: request the EC2 machine of one slot.

The request is stored before it is sent. So if a task runs twice or dies at any point, it gets the same machine and not
a second one.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from scheduler.model.launch_backoff import Hold, describe_error, find_pause, hold_id, is_trial
from scheduler.model.launch_backoff import Refusal as HoldKind
from scheduler.model.pools import Pool
from scheduler.model.quota_classes import quota_subject
from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Slot
from scheduler.model.transitions import INACTIVE, SlotState
from scheduler.operations.machines.unbound import (
    book_unbound,
    end_machines,
    end_unbound,
    find_accounts,
    load_prices,
)
from scheduler.operations.ports import Ports, announce
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.scaling.offerings import list_choices
from scheduler.ports import UNCLEAR, UNHEARD, Category, CloudError, ClusterRow, LaunchOrder, Place, Refusal

MOST_ATTEMPTS = 5
"""The most attempts at a launch whose outcome is unknown. After the last one the launch counts as misconfigured."""
MOST_DELAY = 60.0
LATER_ATTEMPTS = 2
"""As MOST_ATTEMPTS, if the last launch of this offering ended so, too."""
_KINDS: Mapping[Category, HoldKind] = {
    "capacity": "capacity",
    "quota": "quota",
    "throttled": "throttled",
    "auth": "auth",
}
"""Category of a refusal -> the kind of its launch back-off; any other: `misconfigured`."""
PLACED: tuple[HoldKind, ...] = ("capacity", "misconfigured")
"""The kinds of back-offs that may concern a place."""
REPEATED = "repeated"
"""The outcome of a launch task that changed nothing, because an earlier copy of the task had stored the machine. It is
not counted in the metrics.
"""


def launch(ports: Ports, slot_id: str, launch_id: str) -> str:
    """Request the machine of this slot's launch from EC2 and store the machine on the slot. Return the outcome as one
    word, for logs and metrics.
    """
    rules, attempts = ports.rules(), 0
    slot = next(iter(ports.store.find_slots(ids=[slot_id])), None)
    if slot is None or not _is_wanted(slot, launch_id):
        return "not_wanted"
    try:
        places = find_places(ports, rules, slot)
        frozen = _freeze(ports, rules, slot_id, launch_id, places)  # promise: request-stored-first
        if frozen is None or frozen.launch_request is None:
            return "not_wanted"
        attempts = frozen.attempts
        machine = ports.fleet.launch(frozen.launch_request)
    except CloudError as error:
        result = _settle_failure(ports, rules, slot, error, attempts)
    else:
        result = settle_machine(ports, slot, machine)
    if result != REPEATED:
        labels = {"pool": slot.pool, "offering": slot.offering or "", "result": result}
        ports.meter.count("leasehold_launches_total", labels)
    return result


def _is_wanted(slot: Slot | None, launch_id: str | None) -> bool:
    return slot is not None and slot.state == "launching" and slot.launch_id == launch_id


def find_places(ports: Ports, rules: Rules, slot: Slot) -> tuple[Place, ...]:
    """Return the subnets of the slot's pool for its launch request; () if the request is stored already. Call it
    outside of a transaction, because it may call the cloud.
    """
    return ports.fleet.find_places(slot.pool, rules) if slot.launch_request is None else ()


def _freeze(ports: Ports, rules: Rules, slot_id: str, launch_id: str, places: tuple[Place, ...]) -> Slot | None:
    """Store the whole launch request on the slot and count the attempt, before the request is sent to EC2. Return the
    slot, or None if this launch is no longer wanted or not due yet.

    Raises CloudError if the rules lack something that the request needs.
    """
    cluster = ports.store.read_cluster()
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        slot = transaction.load_slots([slot_id]).get(slot_id)
        if slot is None or not _is_wanted(slot, launch_id) or is_put_off(slot, work.now):
            return None
        request = slot.launch_request
        if request is None:
            held = find_held_places(work, rules.pools.get(slot.pool), slot.pool, [slot.offering])
            request = ports.fleet.freeze(order_of(slot, cluster, places, held), rules)
        frozen = msgspec.structs.replace(slot, launch_request=request, attempts=slot.attempts + 1)
        if slot.launch_request is None and (pool := rules.pools.get(slot.pool)) is not None:
            # The rules may have changed since the launch was decided; the request has the present ones.
            frozen = msgspec.structs.replace(frozen, launch_digest=pool.launch_digest)
        transaction.save([frozen])
        return frozen


def is_put_off(slot: Slot, now: float) -> bool:
    """Return whether the next attempt at a slot's launch or termination is not due yet.

    A delay longer than `MOST_DELAY` is ignored: it was written before the clock was set back.
    """
    return 0 < slot.not_before - now <= MOST_DELAY


def find_delay(attempts: int) -> float:
    """Return the seconds until the next attempt at a launch whose outcome is unclear: 1, 2, 4 or 8. The periodic task
    `recover` then sends the launch.
    """
    return min(MOST_DELAY, 2.0 ** max(0, attempts - 1))


def find_held_places(work: UnitOfWork, pool: Pool | None, name: str, keys: Sequence[str | None]) -> tuple[str, ...]:
    """Return the subnets and zones in which launches of these offerings rest now; () in a pool with a single place."""
    places = [] if pool is None else pool.ec2.list_places(None)
    if len(places) <= 1:
        return ()
    owners = {"", *((key or "") for key in keys if len(keys) == 1)}
    ids = {
        hold_id(name, kind, f"{own}@{each}"): each
        for place in places for each in place for kind in PLACED for own in owners
    }  # fmt: skip
    holds = work.transaction.load_holds(sorted(ids)).values()
    return tuple(sorted({ids[hold.id] for hold in holds if work.now < hold.until}))


def order_of(
    slot: Slot, cluster: ClusterRow | None = None, places: tuple[Place, ...] = (), held: tuple[str, ...] = ()
) -> LaunchOrder:
    """Return the order from which the request to launch this slot's machine is built. `cluster`: the cluster whose
    identity the machine gets as a tag; None: the machine gets no such tag. `places`: as `find_places` returns them.
    `held`: as `find_held_places` returns them.
    """
    return LaunchOrder(
        slot=slot.id,
        pool=slot.pool,
        launch_id=slot.launch_id or "",
        generation=slot.epoch,
        offering=slot.offering,
        cluster_id=cluster.identity if cluster else "",
        highest=f"{cluster.term}.{cluster.token}" if cluster else "",
        places=places,
        held_places=held,
    )


def describe_machine(machine: Machine, pool: Pool | None) -> dict[str, Any]:
    """Return the field values that identify a machine on the row of its slot. `pool`: the slot's pool, which chooses
    the address; None: the rules no longer have it.
    """
    return {
        "instance_id": machine.id,
        "address": pool.ec2.choose_address(machine) if pool else machine.address,
        "instance_type": machine.type,
        "zone": machine.zone,
        "subnet": machine.subnet,
    }


def settle_machine(ports: Ports, slot: Slot, machine: Machine) -> str:
    """Store a launched machine on its slot, which is then booting. If the launch is no longer wanted, terminate the
    machine. Return the outcome as one word, for logs and metrics.

    If the slot has this machine already (from another copy of the task, or from the sweep for lost answers), nothing
    changes. If EC2 refuses the termination, that is recorded; the sweep for machines without a slot repeats it. If the
    call fails, CloudError is raised, and the sweep terminates the machine.
    """
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        current = transaction.load_slots([slot.id]).get(slot.id)
        wanted = current is not None and _is_wanted(current, slot.launch_id)
        if current is not None and wanted:
            rules = ports.rules()
            found = describe_machine(machine, rules.pools.get(current.pool))
            work.move_slot(current, "booting", attempts=0, last_seen=work.now, **found)
            forget_holds(work, rules, [msgspec.structs.replace(current, zone=machine.zone, subnet=machine.subnet)])
        change_set = work.flush()
        is_bound = current is not None and (current.launch_id, current.instance_id) == (slot.launch_id, machine.id)
        if not wanted and not is_bound:
            rules = ports.rules()
            book_unbound(work, rules, [machine], find_accounts([slot]), load_prices(ports, rules, [machine]))
    if is_bound:
        return REPEATED
    if not wanted:
        end_machines(ports, [machine])  # promise: unused-machine-ended
        return "aborted"
    announce(ports, change_set, kick=False)
    ports.dispatcher.send_checks([slot.id])
    return "success"


def forget_holds(work: UnitOfWork, rules: Rules, slots: Iterable[Slot], *, at_boot: bool = False) -> None:
    """Delete the launch back-offs (holds) that concern the launches of these slots, because they succeeded. A back-off
    whose reason came as the end of a machine is deleted only when a machine has become ready (`at_boot`).
    """
    concerned: dict[str, list[Slot]] = {}
    for slot in slots:
        for name in _list_concerned(rules.pools.get(slot.pool), slot):
            concerned.setdefault(name, []).append(slot)
    for name, hold in work.transaction.load_holds(sorted(concerned)).items():
        is_over = hold.kind == "throttled" or work.now >= hold.until
        if hold.kind == "quota":
            is_over = any(is_trial(hold, slot.since) for slot in concerned[name])
        if is_over and hold.at_boot == at_boot:
            work.delete(hold)


def _list_concerned(pool: Pool | None, slot: Slot) -> Iterator[str]:
    """Yield the ids of the launch back-offs that may concern the launch of a slot. `pool`: the rules of the slot's
    pool; None: the rules no longer have it.
    """
    key, market = slot.offering or "", slot.market or ""
    places = sorted(filter(None, {slot.zone, slot.subnet}))
    yield hold_id(slot.pool, "throttled")
    for subject in {"", market, *([quota_subject(pool, slot.offering, market)] if pool else [])}:
        yield hold_id(slot.pool, "quota", subject)
    for kind in PLACED:
        yield hold_id(slot.pool, kind, key)
        yield from (hold_id(slot.pool, kind, f"{own}@{place}") for place in places for own in {key, ""})
    for name, subject in ((slot.pool, key), (slot.pool, ""), ("*", market), ("*", "")):
        yield hold_id(name, "auth", subject)


def _settle_failure(ports: Ports, rules: Rules, slot: Slot, error: CloudError, attempts: int) -> str:
    """Settle a failed launch on its slot, with the machine that an earlier attempt has launched, if there is one.
    `attempts`: how often the request was sent. Return the outcome as one word.
    """
    most = find_most_attempts(ports, slot)
    found, error = search_made(lambda: ports.fleet.find_launch(slot.launch_id or ""), error, attempts, most)
    if not found:
        return _settle_error(ports, rules, slot, error, most)
    end_unbound(ports, rules, found[1:], find_accounts([slot]))
    return settle_machine(ports, slot, found[0])


def find_most_attempts(ports: Ports, slot: Slot) -> int:
    """Return how often the launch request of a slot is sent while its outcome is unclear. If launches of the offering
    were given up before, it is sent less often: the back-off of the offering grows, and so EC2 gets few requests.
    """
    own = hold_id(slot.pool, "misconfigured", slot.offering or "")
    return LATER_ATTEMPTS if any(hold.id == own for hold in ports.store.find_holds()) else MOST_ATTEMPTS


def search_made(
    search: Callable[[], list[Machine]], error: CloudError, attempts: int, most: int
) -> tuple[list[Machine], CloudError]:
    """Return the machines that a failed request has launched, and the error with which it failed.

    They are searched (`search`, by their tag) if this error ends the request, and an earlier attempt may have had an
    effect: after an unclear attempt, or if EC2 knows the client token. If the search fails, the outcome is unclear.
    """
    is_known = attempts > 1 or error.is_after_unclear or error.category in {"token", "gone"}
    if not is_known or may_have_launched(error.category, attempts, most):
        return [], error
    try:
        found = search()  # promise: made-machines-searched
    except CloudError as failed:
        unclear = CloudError("transient", failed.code, failed.message)
        return [], unclear if attempts < most else error
    return sorted(found, key=lambda machine: machine.state in {"stopping", "stopped"}), error


@repeated_if_overtaken
def _settle_error(ports: Ports, rules: Rules, slot: Slot, error: CloudError, most: int) -> str:
    """Record a failed launch on its slot. Return the category of the error.

    After a definite refusal the slot becomes `empty` or `error`, and further launches of what was refused are paused.
    After an unclear outcome the same request is sent again, at most `most` times. If the slot was given up during an
    attempt without a clear answer, launches of the offering are paused: else the tick would launch it again at once.
    """
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        current = transaction.load_slots([slot.id]).get(slot.id)
        if current is None or current.launch_id != slot.launch_id:
            return "aborted"
        category, pool = error.category, rules.pools.get(slot.pool)
        outcome: str = category
        if not _is_wanted(current, slot.launch_id):
            outcome = "aborted"
            if current.state == "terminating" and category in UNCLEAR and pool is not None:
                note_refusal(work, pool, current, read_refusal(current, error), is_definite=False)
        elif may_have_launched(category, current.attempts, most):
            due = work.now + find_delay(current.attempts)
            work.put(msgspec.structs.replace(current, not_before=due, sent_at=0.0))
            if category not in UNHEARD:
                outcome = "transient"
            elif pool is not None:
                note_refusal(work, pool, current, read_refusal(current, error), is_definite=False)
        else:
            outcome = find_outcome(error)
            _refuse(work, rules, current, error)
        change_set = work.flush()
    announce(ports, change_set, kick=change_set.turned_slots)
    return outcome


def may_have_launched(category: Category, attempts: int, most: int) -> bool:
    """Return whether a launch request may have launched machines and is sent again. `category`: the category of the
    error that answered its last attempt. After `most` attempts the request is given up.
    """
    is_unclear = category in UNCLEAR or (category in UNHEARD and attempts > 1)
    return is_unclear and attempts < most


def find_outcome(error: CloudError | Refusal) -> Category:
    """Return the category of a launch that is over with this error."""
    return error.category if error.category in {*_KINDS, "gone"} else "misconfigured"


def list_changes(error: CloudError | Refusal) -> tuple[SlotState, dict[str, Any]]:
    """Return the state of a slot whose launch is over with this error, and the other changes of the slot. The state is
    `error` if the next launch would be refused, too.
    """
    outcome = find_outcome(error)
    changes = {"reason": f"{outcome}: {error.code}", "refusal": describe_error(error.code, error.message)}
    if outcome == "misconfigured":
        return "error", changes | {"error": outcome}
    return "empty", changes


def _refuse(work: UnitOfWork, rules: Rules, slot: Slot, error: CloudError) -> None:
    to, changes = list_changes(error)
    work.move_slot(slot, to, **changes)
    if (pool := rules.pools.get(slot.pool)) is not None:
        note_refusal(work, pool, slot, read_refusal(slot, error))


def read_refusal(slot: Slot, error: CloudError) -> Refusal:
    """Return the error of a slot's launch as the refusal of the slot's offering."""
    return error.refuse(slot.offering)


def note_refusal(
    work: UnitOfWork,
    pool: Pool,
    slot: Slot,
    refusal: Refusal,
    *,
    is_definite: bool = True,
    refused: int = 1,
    at_boot: bool = False,
) -> None:
    """Stage the launch back-off (a row called hold) that pauses launches of what EC2 refused.

    Equal refusals of launches that one tick decided count as one. `is_definite`: whether this launch will not be sent
    again. `refused`: the number of slots whose launch is refused. `at_boot`: EC2 launched the machine, and gave the
    refusal as the reason of its end. Any answer except `throttled` deletes the pool's back-off for throttling. All
    holds are locked in one call, so that transactions lock them in the same order. Source: Arvados' holds.
    """
    kind = _KINDS.get(refusal.category, "misconfigured")
    name, subject = _find_subject(pool, slot, refusal)
    own = hold_id(name, kind, subject)
    throttled = hold_id(slot.pool, "throttled")
    locked = lock_holds(work, pool, [(slot, refusal)])
    if is_definite:
        discount_refused(work, slot, own, locked.values(), refused)
    if kind != "throttled" and throttled in locked:
        work.delete(locked[throttled])
    known = work.holds.get(own) or locked.get(own)
    same = known is not None and known.decided_at == slot.since
    streak = known.streak + (not same) if known else 1
    match kind:
        case "capacity":
            delay = pool.capacity_hold
        case "quota":
            delay = pool.quota_hold
        case "throttled":
            # Delays: 1, 2.5, 4.75, 8.125, … at most 60 s. Equal refusals of launches of one tick count as one.
            delay = known.delay if known else 0.0
            delay = delay if same else min(MOST_DELAY, delay * 1.5 + 1)
        case "auth":
            delay = find_pause(MOST_DELAY, streak)
        case _:
            delay = find_pause(pool.error_cooldown, streak)
    active = count_others(work, slot, refused) if kind == "quota" else 0
    work.put(
        Hold(
            version=known.version if known else 0,
            id=own,
            pool=name,
            kind=kind,
            subject=subject,
            refused_at=work.now,
            until=work.now + delay,
            delay=delay,
            active=min(active, known.active) if same and known else active,
            decided_at=slot.since,
            streak=streak,
            code=refusal.code,
            message=refusal.message,
            at_boot=at_boot,
        )
    )


def lock_holds(work: UnitOfWork, pool: Pool, refused: Iterable[tuple[Slot, Refusal]]) -> dict[str, Hold]:
    """Lock and return the launch back-offs that `note_refusal` changes for these refusals, each with its slot. Call it
    before the first of several calls of `note_refusal`, so that all transactions lock them in the same order.
    """
    wanted = set[str]()
    for slot, refusal in refused:
        name, subject = _find_subject(pool, slot, refusal)
        wanted |= {hold_id(slot.pool, "throttled"), *list_quota_holds(slot.pool, pool)}
        wanted.add(hold_id(name, _KINDS.get(refusal.category, "misconfigured"), subject))
    return work.transaction.load_holds(sorted(wanted))


def _find_subject(pool: Pool, slot: Slot, refusal: Refusal) -> tuple[str, str]:
    """Return what is paused after a refusal of this slot's launch: the `pool` and the `subject` of the back-off."""
    key, scope = slot.offering or "", refusal.scope
    match _KINDS.get(refusal.category, "misconfigured"):
        case "throttled":
            return slot.pool, ""
        case "quota":
            return slot.pool, "" if scope == "pool" else quota_subject(pool, slot.offering, slot.market or "")
        case "auth" if scope in {"caller", "market"}:
            return "*", "" if scope == "caller" else slot.market or ""
        case "auth" if scope == "pool":
            return slot.pool, ""
    own = "" if scope == "place" and refusal.place else key
    return slot.pool, f"{own}@{refusal.place}" if refusal.place else own


def list_quota_holds(name: str, pool: Pool) -> list[str]:
    """Return the ids that launch back-offs for EC2 quotas may have in this pool: for the pool, for each market of its
    offerings (written by earlier versions), and for each quota class in it.
    """
    choices = list_choices(pool)
    subjects = {
        "",
        *(each.market for each in choices),
        *(quota_subject(pool, each.key, each.market) for each in choices),
    }
    return sorted(hold_id(name, "quota", subject) for subject in subjects)


def list_quota_holds_of(rules: Rules, pools: Iterable[str]) -> list[str]:
    """Return the ids that launch back-offs for EC2 quotas have in these pools. Pools that the rules do not list are
    skipped.
    """
    names = sorted(set(pools) & rules.pools.keys())
    return [each for name in names for each in list_quota_holds(name, rules.pools[name])]


def end_quota_holds(work: UnitOfWork, holds: Mapping[str, Hold]) -> None:
    """End each launch back-off for an EC2 quota whose pool has fewer active slots now than when EC2 refused the launch.
    Call it before other slots of the transaction become active, because these would hide the lower number.
    """
    lasting = [hold for hold in holds.values() if hold.kind == "quota" and hold.active and work.now < hold.until]
    active = {name: work.transaction.count_active(name) for name in {hold.pool for hold in lasting}}
    for hold in lasting:
        if active[hold.pool] < hold.active:
            work.put(msgspec.structs.replace(hold, until=work.now))


def discount_refused(work: UnitOfWork, refused: Slot, own: str, holds: Collection[Hold], count: int = 1) -> None:
    """Correct `active`, the stored number of active slots, in the other launch back-offs for an EC2 quota which began
    at the same time as this refusal, or which a launch of the same tick caused. The number is lowered to the number of
    the pool's slots that are active now, so that slots whose launch was refused do not count.

    The slot of a refused launch is no longer active. Without the correction, a later count would be lower than the
    stored number. That would look like freed EC2 quota and end these back-offs. `own`: the id of the back-off that this
    refusal caused; it does not change. `holds`: the back-offs that may be corrected. `count`: the number of slots whose
    launch is refused now; `refused` is one of them.
    """
    others = [hold for hold in holds if hold.kind == "quota" and hold.id != own]
    # Back-offs that began at the same time: refused at this instant, or for launches that the same tick decided.
    alike = [hold for hold in others if hold.refused_at == work.now or hold.decided_at == refused.since]
    active = count_others(work, refused, count) if alike else 0
    for hold in alike:
        if active < hold.active:
            work.put(msgspec.structs.replace(hold, active=active))


def count_others(work: UnitOfWork, refused: Slot, count: int = 1) -> int:
    """Return the number of active slots in the pool of the slot `refused`, without the slots whose launch is refused
    now. `count`: the number of these slots; `refused` is one of them.
    """
    active = work.transaction.count_active(refused.pool)
    return active - (count if refused.state not in INACTIVE else 0)
