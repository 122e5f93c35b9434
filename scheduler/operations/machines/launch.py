"""Launch: request the EC2 machine of one slot.

The request is stored before it is sent. So if a task runs twice or dies at any point, it gets the same machine and not
a second one.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.pools import Pool
from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Slot
from scheduler.model.transitions import INACTIVE
from scheduler.operations.machines.unbound import book_unbound, find_accounts, load_prices
from scheduler.operations.ports import Ports, announce
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.scaling.offerings import list_choices
from scheduler.ports import UNHEARD, Category, CloudError, ClusterRow, LaunchOrder, Place

MOST_ATTEMPTS = 5
"""The most attempts at a launch whose outcome is unknown. After the last one the launch counts as misconfigured."""
MOST_DELAY = 60.0
REFUSALS: frozenset[Category] = frozenset({"capacity", "quota", "throttled", "auth", "misconfigured"})
"""The categories of EC2 errors after which it is certain that the request launched no machine."""
NOTHING_MADE: frozenset[Category] = frozenset({"capacity", "quota", "misconfigured", "not_found"})
"""Categories of errors. If a launch request is repeated and EC2 answers with such an error, the first request launched
no machine. The categories `throttled` and `auth` do not show this, because EC2 returns them before it looks at the
request.
"""
REPEATED = "repeated"
"""The outcome of a launch task that changed nothing, because an earlier copy of the task had stored the machine. It is
not counted in the metrics.
"""


def launch(ports: Ports, slot_id: str, launch_id: str) -> str:
    """Request the machine of this slot's launch from EC2 and store the machine on the slot. Return the outcome as one
    word, for logs and metrics.
    """
    rules = ports.rules()
    slot = next(iter(ports.store.find_slots(ids=[slot_id])), None)
    if slot is None or not _is_wanted(slot, launch_id):
        return "not_wanted"
    try:
        places = find_places(ports, rules, slot)
        frozen = _freeze(ports, rules, slot_id, launch_id, places)  # promise: request-stored-first
        if frozen is None or frozen.launch_request is None:
            return "not_wanted"
        machine = ports.fleet.launch(frozen.launch_request)
    except CloudError as error:
        result = _settle_error(ports, rules, slot, error)
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
        request = slot.launch_request or ports.fleet.freeze(order_of(slot, cluster, places), rules)
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


def order_of(slot: Slot, cluster: ClusterRow | None = None, places: tuple[Place, ...] = ()) -> LaunchOrder:
    """Return the order from which the request to launch this slot's machine is built. `cluster`: the cluster whose
    identity the machine gets as a tag; None: the machine gets no such tag. `places`: as `find_places` returns them.
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
    )


def describe_machine(machine: Machine) -> dict[str, Any]:
    """Return the field values that identify a machine on the row of its slot."""
    return {
        "instance_id": machine.id,
        "address": machine.address,
        "instance_type": machine.type,
        "zone": machine.zone,
    }


def settle_machine(ports: Ports, slot: Slot, machine: Machine) -> str:
    """Store a launched machine on its slot, which is then booting. If the launch is no longer wanted, terminate the
    machine. Return the outcome as one word, for logs and metrics.

    If the slot has this machine already (from another copy of the task, or from the sweep for lost answers), nothing
    changes. If EC2 refuses the termination, CloudError is raised; the sweep for machines without a slot terminates the
    machine later.
    """
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        current = transaction.load_slots([slot.id]).get(slot.id)
        wanted = current is not None and _is_wanted(current, slot.launch_id)
        if current is not None and wanted:
            work.move_slot(current, "booting", attempts=0, last_seen=work.now, **describe_machine(machine))
            forget_holds(work, current)
        change_set = work.flush()
        is_bound = current is not None and (current.launch_id, current.instance_id) == (slot.launch_id, machine.id)
        if not wanted and not is_bound:
            rules = ports.rules()
            book_unbound(work, rules, [machine], find_accounts([slot]), load_prices(ports, rules, [machine]))
    if is_bound:
        return REPEATED
    if not wanted:
        ports.fleet.terminate([machine.id])  # promise: unused-machine-ended
        return "aborted"
    announce(ports, change_set, kick=False)
    ports.dispatcher.send_checks([slot.id])
    return "success"


def forget_holds(work: UnitOfWork, slot: Slot) -> None:
    """Delete the launch back-offs (holds) of the slot's pool, market and offering, because the launch of the slot
    succeeded.
    """
    subject, market = slot.offering or "", slot.market or ""
    names = [
        hold_id(slot.pool, "throttled"),
        hold_id(slot.pool, "quota", market),
        hold_id(slot.pool, "capacity", subject),
        hold_id(slot.pool, "misconfigured", subject),
        hold_id("*", "auth"),
    ]
    for hold in work.transaction.load_holds(names).values():
        is_over = hold.kind == "throttled" or work.now >= hold.until
        if is_probe(hold, slot) if hold.kind == "quota" else is_over:
            work.delete(hold)


@repeated_if_overtaken
def _settle_error(ports: Ports, rules: Rules, slot: Slot, error: CloudError) -> str:
    """Record a failed launch on its slot. Return the category of the error.

    After a definite refusal the slot becomes `empty` or `error`, and further launches of the offering, market or pool
    are paused. After an unclear outcome the same request is sent again, at most `MOST_ATTEMPTS` times.
    """
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        current = transaction.load_slots([slot.id]).get(slot.id)
        if current is None or not _is_wanted(current, slot.launch_id):
            return "aborted"
        category = error.category
        if may_have_launched(category, current.attempts):
            due = work.now + find_delay(current.attempts)
            work.put(msgspec.structs.replace(current, not_before=due, sent_at=0.0))
            if category not in UNHEARD:
                category = "transient"
            elif (pool := rules.pools.get(slot.pool)) is not None:
                note_refusal(work, pool, current, category, is_definite=False)
        else:
            category = category if category in REFUSALS else "misconfigured"
            _refuse(work, rules, current, category, error)
        change_set = work.flush()
    announce(ports, change_set, kick=change_set.turned_slots)
    return category


def may_have_launched(category: Category, attempts: int) -> bool:
    """Return whether a launch request may have launched machines and is sent again. `category`: the category of the
    error that answered its last attempt. After `MOST_ATTEMPTS` attempts the request is given up.
    """
    is_unclear = category not in REFUSALS or (category in UNHEARD and attempts > 1)
    return is_unclear and attempts < MOST_ATTEMPTS


def _refuse(work: UnitOfWork, rules: Rules, slot: Slot, category: Category, error: CloudError) -> None:
    pool = rules.pools.get(slot.pool)
    detail = f"{category}: {error.code}"
    if category == "misconfigured":
        work.move_slot(slot, "error", reason=detail, error=category)
    else:
        work.move_slot(slot, "empty", reason=detail)
    if pool is not None:
        note_refusal(work, pool, slot, category)


def note_refusal(
    work: UnitOfWork, pool: Pool, slot: Slot, category: Category, *, is_definite: bool = True, refused: int = 1
) -> None:
    """Stage the launch back-off (a row called hold) that pauses launches after EC2 refused one with an error of this
    `category`.

    Equal refusals of launches that one tick decided count as one. `is_definite`: whether this launch will not be sent
    again. `refused`: the number of slots whose launch is refused. Any answer except `throttled` deletes the pool's
    back-off for throttling. All holds are locked in one call, so that transactions lock them in the same order. Source:
    Arvados' holds.
    """
    name = slot.pool
    own = hold_id("*" if category == "auth" else name, category, _find_subject(slot, category))  # type: ignore[arg-type]
    locked = work.transaction.load_holds([hold_id(name, "throttled"), own, *list_quota_holds(name, pool)])
    if is_definite:
        discount_refused(work, slot, own, locked.values(), refused)
    if category != "throttled":
        for stale in work.transaction.load_holds([hold_id(name, "throttled")]).values():
            work.delete(stale)
    match category:
        case "capacity":
            _hold(work, slot, name, category, pool.capacity_hold)
        case "quota":
            _hold(work, slot, name, category, pool.quota_hold, refused)
        case "throttled":
            _hold(work, slot, name, category, 0.0)
        case "misconfigured":
            _hold(work, slot, name, category, pool.error_cooldown)
        case "auth":
            _hold(work, slot, "*", category, MOST_DELAY)
        case _:
            pass


def _find_subject(slot: Slot, category: Category) -> str:
    """Return what is paused after a refusal of this category: the key of an offering, a market, or "" for the whole
    pool. This is the `subject` of the launch back-off.
    """
    subjects = {"capacity": slot.offering, "misconfigured": slot.offering, "quota": slot.market}
    return subjects.get(category) or ""


def _hold(work: UnitOfWork, slot: Slot, pool: str, kind: Category, seconds: float, refused: int = 1) -> None:
    subject = _find_subject(slot, kind)
    identity = hold_id(pool, kind, subject)  # type: ignore[arg-type]
    known = work.transaction.load_holds([identity]).get(identity)
    same = known is not None and known.decided_at == slot.since
    delay = seconds
    if kind == "throttled":
        # Delays: 1, 2.5, 4.75, 8.125, … at most 60 s. Equal refusals of launches of one tick count as one.
        delay = known.delay if known else 0.0
        delay = delay if same else min(MOST_DELAY, delay * 1.5 + 1)
    active = count_others(work, slot, refused) if kind == "quota" else 0
    work.put(
        Hold(
            version=known.version if known else 0,
            id=identity,
            pool=pool,
            kind=kind,  # type: ignore[arg-type]
            subject=subject,
            refused_at=work.now,
            until=work.now + delay,
            delay=delay,
            active=min(active, known.active) if same and known else active,
            decided_at=slot.since,
            streak=(known.streak + (not same)) if known else 1,
        )
    )


def list_quota_holds(name: str, pool: Pool) -> list[str]:
    """Return the ids that launch back-offs for EC2 quotas have in this pool: one for each market of its offerings."""
    return sorted({hold_id(name, "quota", choice.market) for choice in list_choices(pool)})


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


def is_probe(hold: Hold, slot: Slot) -> bool:
    """Return whether a launch back-off was over when the launch of the slot was decided. Such a launch tests whether
    EC2 accepts launches again, so only its success shows that EC2 does.
    """
    return hold.until <= slot.since
