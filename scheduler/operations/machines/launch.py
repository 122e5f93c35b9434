"""Launch: request EC2 machines for slots, and give the machines of the answer to the slots.

One request asks for the machines of all slots of a batch, or for the machine of one slot, which is a batch of one. It
is stored on the first of its slots before it is sent. So a task that runs twice or dies at any point launches nothing
twice, and a slot that is given up meanwhile gets no machine.

A machine of a batch has no tag with a slot: only the database records which slot it belongs to, by the order of the
answer. Such an answer is recorded once, in one transaction that also deletes the stored request.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

import msgspec

from scheduler.model.launch_backoff import describe_error, hold_id
from scheduler.model.pools import Pool
from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Slot, slot_order
from scheduler.model.transitions import SlotState
from scheduler.operations.change_set import ChangeSet
from scheduler.operations.machines.holds import (
    KINDS,
    MOST_DELAY,
    find_held_places,
    forget_holds,
    list_held,
    lock_holds,
    note_refusal,
    read_refusal,
)
from scheduler.operations.machines.joining import add_join_token, describe_join
from scheduler.operations.machines.unbound import (
    book_unbound,
    end_machines,
    find_accounts,
    find_offering,
    load_prices,
)
from scheduler.operations.machines.work import check_soon
from scheduler.operations.ports import Ports, announce, cloud_work
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.operations.writers.slots import describe_choice
from scheduler.policy.scaling.offerings import Choice, list_alternatives, list_configured
from scheduler.ports import (
    UNCLEAR,
    UNHEARD,
    Category,
    CloudError,
    ClusterRow,
    LaunchAnswer,
    LaunchOrder,
    Place,
    Refusal,
)

MOST_ATTEMPTS = 5
"""The most attempts at a launch whose outcome is unknown. After the last one the launch counts as misconfigured."""
LATER_ATTEMPTS = 2
"""As MOST_ATTEMPTS, if the last launch of this offering ended so, too."""
REPEATED = "repeated"
"""The outcome of a launch task that changed nothing, because an earlier copy of the task had stored the machines. It is
not counted in the metrics.
"""
SHORT = "UnfulfillableCapacity"
"""Error code for a request that got fewer machines than it asked for, if EC2 names no error. Source: CreateFleet."""
GANG = "gang"
"""Key in a stored request. It is present if the machines are of use only together; its value is the id of the gang."""
BATCH = "batch"
"""Key in a stored request for the machines of a batch. Its value is the id of the batch."""
SLOTS = "slots"
"""Key in a stored request. Its value is the ids of the slots for which the request asks machines. A request without
this key, which an older version stored, asks for the machine of its slot.
"""
PRICES = "prices"
"""Key in a stored request. Its value is the price of each offering when the request was made. A slot gets one of these
prices, even if the table of prices changes before the answer comes.
"""


def launch(ports: Ports, name: str, slot_id: str | None = None) -> str:
    """Request the machines of all slots of one request that still want one. `name`: the id of their batch, or the
    launch id of the slot `slot_id`. Return the outcome as one word, for logs and metrics.

    `success`: at least one slot got a machine; for a gang: all slots. Slots without a machine become empty, and the
    next tick plans their launches again.
    """
    rules, attempts = ports.rules(), 0
    slots, is_batch = _find_slots(ports, name, slot_id), slot_id is None
    if not any(_wants_machine(slot, name) for slot in slots):
        return "not_wanted"
    names = [slot.id for slot in slots]
    try:
        is_stored = any(slot.launch_request is not None for slot in slots)
        places = () if is_stored else ports.fleet.find_places(slots[0].pool, rules)
        token = {} if is_stored else describe_join(ports.store, rules, slots[0])
        # promise: request-stored-first
        first = _freeze(ports, rules, name, names, places, token, is_batch=is_batch)
        if first is None or first.launch_request is None:
            return "not_wanted"
        attempts = first.attempts
        answer = ports.fleet.launch(add_join_token(ports.store, first.launch_request))
    except CloudError as error:
        return _settle_failure(ports, rules, name, names, error, attempts)
    if not answer.machines and (attempts > 1 or answer.is_after_unclear):
        try:
            found = _find_made(ports, rules, first.pool, first.launch_request)
        except CloudError as error:
            unclear = CloudError("transient", error.code, error.message)
            return _settle_error(ports, rules, name, names, unclear, find_most_attempts(ports, first))
        answer = _answer(first, found, answer.refusals)
    return settle(ports, rules, first, answer)


def _list_asked(first: Slot) -> list[str]:
    """Return the slots for which the stored request of a slot asks machines."""
    return (first.launch_request or {}).get(SLOTS, [first.id])  # type: ignore[no-any-return]


def _answer(first: Slot, found: Sequence[Machine], refusals: Sequence[Refusal]) -> LaunchAnswer:
    """Return the answer to a request whose machines were found by their tag. `refusals`: why other machines of the
    request are missing.
    """
    is_short = len(found) < len(_list_asked(first))
    return LaunchAnswer(machines=tuple(found), refusals=tuple(refusals) if is_short else ())


def _find_made(ports: Ports, rules: Rules, pool: str, request: Mapping[str, Any]) -> list[Machine]:
    """Return the machines that a request has launched, by their tag, with their offerings. Running ones come first."""
    found, configured = ports.fleet.find_launched(request), rules.pools.get(pool)
    found.sort(key=lambda machine: (machine.state in {"stopping", "stopped"}, machine.id))
    if configured is None:
        return found
    return [msgspec.structs.replace(each, offering=find_offering(configured, each)) for each in found]


def find_request(ports: Ports, batch: str) -> Slot | None:
    """Return the slot with the stored request of a batch, if its answer has not been recorded yet; None if there is no
    such request.
    """
    stored = (slot for slot in ports.store.find_slots(states=["launching", "terminating"]) if slot.launch_request)
    return next((slot for slot in stored if (slot.launch_request or {}).get(BATCH) == batch), None)


def end_batch(ports: Ports, batch: str, *, tries: int) -> None:
    """Send the request for the machines of a batch of slots again, because some of the slots were given up before the
    answer was recorded. The answer shows which machines the request has launched: each machine is given to a slot that
    still wants one, or is terminated.

    If there is no such answer, the machines are searched by their tag. `tries`: how often this was tried before. After
    `MOST_ATTEMPTS` tries only the search counts, and later the request is not sent again. Raises CloudError while the
    outcome is unknown.
    """
    first = find_request(ports, batch)
    if first is None or first.launch_request is None:
        return
    rules, answer = ports.rules(), LaunchAnswer(machines=())
    if tries <= MOST_ATTEMPTS:
        try:
            answer = ports.fleet.launch(add_join_token(ports.store, first.launch_request))
        except CloudError as error:
            if error.category in UNCLEAR | UNHEARD and tries < MOST_ATTEMPTS:
                raise
    if not answer.machines:
        answer = LaunchAnswer(machines=tuple(_find_made(ports, rules, first.pool, first.launch_request)))
    settle(ports, rules, first, answer)


def _find_slots(ports: Ports, name: str, slot_id: str | None) -> list[Slot]:
    """Return the slots of a request, in slot order: those of the batch `name`, or the slot of the launch `name`."""
    states: list[SlotState] = ["launching", "terminating"]
    found = ports.store.find_slots(states=states) if slot_id is None else ports.store.find_slots(ids=[slot_id])
    return sorted(
        (slot for slot in found if _is_of(slot, name) and slot.state in states),
        key=lambda slot: slot_order(slot.id),
    )


def _is_of(slot: Slot, name: str) -> bool:
    """Return whether the request `name`, a launch or a batch, is about this slot."""
    return name in {slot.batch, slot.launch_id}


def _wants_machine(slot: Slot, name: str) -> bool:
    return slot.state == "launching" and _is_of(slot, name)


def _find_open(slots: Sequence[Slot], name: str) -> Slot | None:
    """Return the slot which shows that the answer to a request is not recorded; None if it is. Of a batch it is the
    slot with the stored request.
    """
    mine = (slot for slot in slots if _is_of(slot, name) and slot.instance_id is None)
    return next((slot for slot in mine if slot.batch is None or slot.launch_request is not None), None)


@repeated_if_overtaken
def _freeze(
    ports: Ports,
    rules: Rules,
    name: str,
    names: Sequence[str],
    places: tuple[Place, ...],
    token: Mapping[str, Any],
    *,
    is_batch: bool,
) -> Slot | None:
    """Store a request on its first slot that wants a machine, and count the attempt, before the request is sent. Return
    this slot, or None if no slot wants a machine or the next attempt is not due.

    A request that is stored already is not changed, even if slots of the batch were given up since. Raises CloudError
    if the rules lack something that the request needs.
    """
    cluster = ports.store.read_cluster()
    with cloud_work(ports) as work:
        slots = [slot for slot in work.transaction.load_slots(names).values() if _is_of(slot, name)]
        slots.sort(key=lambda slot: slot_order(slot.id))
        wanting = [slot for slot in slots if _wants_machine(slot, name)]
        stored = next((slot for slot in slots if slot.launch_request is not None), None)
        first = stored or next(iter(wanting), None)
        if first is None or not wanting or is_put_off(first, work.now):
            return None
        pool, request = rules.pools.get(first.pool), first.launch_request
        if request is None:
            order = _order(work, rules, wanting, cluster, places, is_batch=is_batch)
            request = {
                **ports.fleet.freeze(order, rules),
                **token,
                **({BATCH: name} if is_batch else {}),
                SLOTS: [slot.id for slot in wanting],
                **({GANG: first.gang} if order.is_gang else {}),
                PRICES: {each.key: each.price for each in _list_choices(pool) if each.key in order.offerings},
            }
        frozen = msgspec.structs.replace(first, launch_request=request, attempts=first.attempts + 1)
        if pool is None or stored is not None:
            work.transaction.save([frozen])
            return frozen
        # The rules may have changed since the launches were decided; the request has the present ones.
        digest = {"launch_digest": pool.launch_digest}
        frozen = msgspec.structs.replace(frozen, **digest)
        others = (slot for slot in wanting if slot.id != first.id and slot.launch_digest != pool.launch_digest)
        work.transaction.save([frozen, *(msgspec.structs.replace(slot, **digest) for slot in others)])
        return frozen


def _order(
    work: UnitOfWork,
    rules: Rules,
    slots: Sequence[Slot],
    cluster: ClusterRow,
    places: tuple[Place, ...],
    *,
    is_batch: bool,
) -> LaunchOrder:
    """Return the order for the machines of these slots, which are launched with the same offering."""
    first = slots[0]
    pool = rules.pools.get(first.pool)
    offerings: tuple[str, ...] = () if first.offering is None else (first.offering,)
    if is_batch and pool is not None:
        offerings = _list_alternatives(work, rules, pool, first) or offerings
    return msgspec.structs.replace(
        order_of(first, cluster, is_batch=is_batch),
        count=len(slots),
        offerings=offerings,
        is_gang=is_batch and first.gang is not None,
        places=places,
        held_places=find_held_places(work, pool, first.pool, offerings or [None]),
    )


def _list_alternatives(work: UnitOfWork, rules: Rules, pool: Pool, first: Slot) -> tuple[str, ...]:
    """Return the offerings among which the cloud may choose for the slots of a batch; () in a pool without any."""
    chosen = _find_choice(pool, first.offering)
    if chosen is None or chosen.key is None:
        return ()
    choices = list_alternatives(pool, chosen, list_held(work, pool, first.pool, chosen.market))
    # The plan counted the price of the slot against the budgets, which may have changed since: no alternative may cost
    # more.
    is_limited = any(each.is_limit and each.may_cover(first.pool) for each in rules.budgets.values())
    most = inf if not is_limited else chosen.price if first.price is None else first.price
    # The planned offering keeps the price of its slots, so it is always one of them.
    wanted_keys = [each.key for each in choices if each.price <= most or each.key == chosen.key]
    return tuple(key for key in wanted_keys if key is not None)


def order_of(slot: Slot, cluster: ClusterRow | None = None, *, is_batch: bool = False) -> LaunchOrder:
    """Return the order for the machine of a slot, or of the first slot of its batch. `cluster`: the cluster whose
    identity the machine gets as a tag; None: the machine gets no such tag.
    """
    target: dict[str, Any] = (
        {"batch": slot.batch}
        if is_batch
        else {"slot": slot.id, "launch_id": slot.launch_id or "", "generation": slot.epoch}
    )
    return LaunchOrder(
        **target,
        pool=slot.pool,
        offerings=() if slot.offering is None else (slot.offering,),
        cluster_id=cluster.identity if cluster else "",
        highest=f"{cluster.term}.{cluster.token}" if cluster else "",
    )


def _list_choices(pool: Pool | None) -> list[Choice]:
    return [] if pool is None else list_configured(pool)


def _find_choice(pool: Pool | None, key: str | None) -> Choice | None:
    return next((each for each in _list_choices(pool) if each.key == key), None)


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


def settle(ports: Ports, rules: Rules, first: Slot, answer: LaunchAnswer) -> str:
    """Record the answer to a request. An answer is recorded only once. Return the outcome as one word, for logs and
    metrics. `first`: the slot with the stored request.

    The machines of the answer are given, in its order, to the slots that want one. Slots for which there is no machine
    become empty, and each refusal pauses launches. Slots of a batch that were given up meanwhile become empty. Machines
    that no slot wants are terminated. If EC2 refuses some of them, that is recorded, and the sweep for machines without
    a slot repeats it. If the call fails, CloudError is raised, and the sweep terminates these machines. If a gang lacks
    a machine, the slots of its other machines are terminated at once: the machines would cost money and serve nothing
    until the gang is complete.
    """
    bound, left, change_set = _record(ports, rules, first, answer)
    if change_set is None and not left:
        return REPEATED
    if left:
        end_machines(ports, left)  # promise: unused-machine-ended
    if change_set is not None:
        announce(ports, change_set, kick=change_set.turned_slots)
    is_complete = not is_partial(first, answer)
    if bound and is_complete:
        check_soon(ports, [slot for slot, _ in bound])
    results = Counter((machine.offering or first.offering, "success") for _, machine in bound)
    missing = len(_list_asked(first)) - len(answer.machines)
    if missing > 0 and answer.refusals:
        results[answer.refusals[-1].offering, find_outcome(answer.refusals[-1])] += missing
    for (offering, result), count in (results or Counter({(first.offering, "aborted"): 1})).items():
        _count(ports, first.pool, offering, result, count)
    if bound and is_complete:
        return "success"
    return find_outcome(answer.refusals[-1]) if answer.refusals else "capacity" if bound else "aborted"


def _count(ports: Ports, pool: str, offering: str | None, result: str, count: int = 1) -> None:
    ports.meter.count("leasehold_launches_total", {"pool": pool, "offering": offering or "", "result": result}, count)


def is_partial(first: Slot, answer: LaunchAnswer) -> bool:
    """Return whether the answer has some machines of a gang, but not all."""
    return GANG in (first.launch_request or {}) and 0 < len(answer.machines) < len(_list_asked(first))


@repeated_if_overtaken
def _record(
    ports: Ports, rules: Rules, asked: Slot, answer: LaunchAnswer
) -> tuple[list[tuple[str, Machine]], list[Machine], ChangeSet | None]:
    """Write the answer to the stored request of a slot. Return three things: (1) the slots that got a machine, each
    with its machine; (2) the machines that no slot wants; (3) the changes, or None if the answer was recorded before.
    """
    request, asked_slots = asked.launch_request or {}, _list_asked(asked)
    name = request.get(BATCH) or asked.launch_id or ""
    with cloud_work(ports) as work:
        work.slots = work.transaction.load_slots(asked_slots)
        slots = [work.slots[each] for each in asked_slots if each in work.slots]
        first, pool = _find_open(slots, name), rules.pools.get(asked.pool)
        wanting = [] if first is None else [slot for slot in slots if _wants_machine(slot, name)]
        bound = list(zip(wanting, answer.machines, strict=False))
        if first is None:  # promise: batch-answer-once
            known = {slot.instance_id for slot in slots}
            left = [machine for machine in answer.machines if machine.id not in known]
        else:
            left = list(answer.machines[len(wanting) :])
            for slot, machine in bound:
                _bind(work, pool, slot, machine, request)
            _refuse_rest(work, rules, first, wanting, asked, answer)
            _clear(work, slots, name)
        change_set = work.flush()
        book_unbound(work, rules, left, find_accounts([*slots, asked]), load_prices(ports, rules, left))
    return [(slot.id, machine) for slot, machine in bound], left, None if first is None else change_set


def _refuse_rest(
    work: UnitOfWork, rules: Rules, first: Slot, wanting: Sequence[Slot], asked: Slot, answer: LaunchAnswer
) -> None:
    """Record what follows for the launches of others: back-offs that an answer without refusals ends, or those that its
    refusals begin. Give up the slots for which there is no machine, and all slots of an incomplete gang.
    """
    bound = list(zip(wanting, answer.machines, strict=False))
    refusals = answer.refusals if not answer.machines else tuple(map(_narrow, answer.refusals))
    if is_partial(asked, answer):
        # A hold even if EC2 names no error. Otherwise the next tick would buy the same incomplete gang again.
        refusals = refusals or (Refusal(offering=first.offering, category="capacity", code=SHORT),)
        for slot, _ in bound:
            work.move_slot(work.slots[slot.id], "terminating", reason="gang_incomplete")  # promise: gang-whole
    if bound and not refusals:
        launched = {(each.offering or first.offering, each.zone, each.subnet) for _, each in bound}
        forget_holds(
            work,
            rules,
            [msgspec.structs.replace(first, offering=key, zone=zone, subnet=net) for key, zone, net in launched],
        )
    _refuse(work, rules.pools.get(first.pool), first, wanting[len(bound) :], refusals)


def _narrow(refusal: Refusal) -> Refusal:
    """Return a refusal that came beside machines. It does not concern all launches of the account or of a market,
    because the machines were launched.
    """
    return msgspec.structs.replace(refusal, scope="offering") if refusal.scope in {"caller", "market"} else refusal


def _clear(work: UnitOfWork, slots: Sequence[Slot], batch: str) -> None:
    """Make those slots empty that were given up before the answer to the request of their batch was recorded."""
    for slot in slots:
        if slot.state == "terminating" and slot.batch == batch and slot.instance_id is None:
            work.move_slot(slot, "empty", reason="never_launched")


def _bind(work: UnitOfWork, pool: Pool | None, slot: Slot, machine: Machine, request: Mapping[str, Any]) -> None:
    """Store this machine on a slot. If the machine has another offering than was planned for the slot, the slot gets
    the resources of that offering, and the price that the offering had when the request was made (the present one if
    the request, of an older version, has none). `pool` None: the rules no longer have the pool.
    """
    is_other = machine.offering not in {None, slot.offering}
    choice = _find_choice(pool, machine.offering) if is_other else None
    changes: dict[str, Any] = {}
    if choice is not None:
        changes = describe_choice(choice) | {"price": request.get(PRICES, {}).get(choice.key or "", choice.price)}
    if request.get(BATCH):
        changes["launch_request"] = None  # the answer is recorded; other slots' requests show their image
    work.move_slot(slot, "booting", attempts=0, last_seen=work.now, **describe_machine(machine, pool), **changes)


def _refuse(
    work: UnitOfWork, pool: Pool | None, first: Slot, slots: Sequence[Slot], refusals: Sequence[Refusal]
) -> None:
    """Move the slots for which a request got no machine to the state `empty`, or to `error` if the last refusal is a
    wrong configuration. Stage the pauses of launches that the refusals cause, if the rules still have the pool (`pool`
    not None).

    `slots`: the slots without a machine. `first`: a slot of the request, as it was before this transaction changed it;
    its launch decides which pauses are staged. Each of `refusals` counts as one refusal, however many machines it
    concerned.
    """
    if slots:
        to, changes = list_changes(
            refusals[-1] if refusals else Refusal(offering=None, category="capacity", code=SHORT)
        )
        for slot in slots:
            work.move_slot(slot, to, **changes | ({"launch_request": None} if to == "error" else {}))
    if pool is None:
        return
    refused = [(msgspec.structs.replace(first, offering=each.offering), each) for each in dict.fromkeys(refusals)]
    lock_holds(work, pool, refused)
    for named, refusal in refused:
        note_refusal(work, pool, named, refusal, refused=len(slots))


def _settle_failure(
    ports: Ports, rules: Rules, name: str, names: Sequence[str], error: CloudError, attempts: int
) -> str:
    """Settle a failed request with the machines that an earlier attempt has launched, if there are any. `attempts`: how
    often the request was sent. Return the outcome as one word.
    """
    mine = [slot for slot in ports.store.find_slots(ids=names) if _is_of(slot, name)]
    first = next((slot for slot in mine if slot.launch_request is not None), next(iter(mine), None))
    if first is None:
        return "aborted"
    most, request = find_most_attempts(ports, first), first.launch_request
    if request is not None:
        found, error = search_made(lambda: _find_made(ports, rules, first.pool, request), error, attempts, most)
        if found:
            return settle(ports, rules, first, _answer(first, found, _list_refusals(request, first, error)))
    return _settle_error(ports, rules, name, names, error, most)


def _list_refusals(request: dict[str, Any] | None, first: Slot, error: CloudError) -> list[Refusal]:
    """Return the refusals that an error of the whole request means: of all its offerings, if the error is about
    offerings or their quota classes. `first`: a slot of the batch, whose offering is meant if no request is stored.
    """
    offerings = [key or None for key in (request or {}).get("offerings", ())]
    if not offerings or error.scope not in {"offering", "class"}:
        offerings = [first.offering]
    return [error.refuse(key) for key in offerings]


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
        return [], CloudError("transient", failed.code, failed.message) if attempts < most else error
    return sorted(found, key=lambda machine: machine.state in {"stopping", "stopped"}), error


@repeated_if_overtaken
def _settle_error(ports: Ports, rules: Rules, name: str, names: Sequence[str], error: CloudError, most: int) -> str:
    """Record that a request failed. Return the category of the error.

    After a definite refusal the slots become `empty` or `error`, and further launches of what was refused are paused.
    After an unclear outcome the same request is sent again, at most `most` times. If the slots were given up during an
    attempt without a clear answer, launches of the offering are paused: else the tick would launch it again at once.
    """
    with cloud_work(ports) as work:
        work.slots = work.transaction.load_slots(names)
        slots = [work.slots[each] for each in names if each in work.slots and _is_of(work.slots[each], name)]
        wanting = [slot for slot in slots if _wants_machine(slot, name)]
        first = _find_open(slots, name) or next(iter(wanting), None)
        if first is None:
            return "aborted"
        pool, category = rules.pools.get(first.pool), error.category
        if may_have_launched(category, first.attempts, most):
            if wanting:
                due = work.now + find_delay(first.attempts)
                work.put(msgspec.structs.replace(first, not_before=due, sent_at=0.0))
            if pool is not None and (category in UNHEARD or not wanting):
                note_refusal(work, pool, first, read_refusal(first, error), is_definite=False)
            outcome: str = category if category in UNHEARD else "transient"
        else:
            outcome = find_outcome(error)
            _refuse(work, pool, first, wanting, _list_refusals(first.launch_request, first, error))
            _clear(work, slots, name)
        change_set = work.flush()
    announce(ports, change_set, kick=change_set.turned_slots)
    _count(ports, first.pool, first.offering, outcome if wanting else "aborted", max(1, len(wanting)))
    return outcome if wanting else "aborted"


def may_have_launched(category: Category, attempts: int, most: int) -> bool:
    """Return whether a launch request may have launched machines and is sent again. `category`: the category of the
    error that answered its last attempt. After `most` attempts the request is given up.
    """
    is_unclear = category in UNCLEAR or (category in UNHEARD and attempts > 1)
    return is_unclear and attempts < most


def find_outcome(error: CloudError | Refusal) -> Category:
    """Return the category of a launch that is over with this error."""
    return error.category if error.category in {*KINDS, "gone"} else "misconfigured"


def list_changes(error: CloudError | Refusal) -> tuple[SlotState, dict[str, Any]]:
    """Return the state of a slot whose launch is over with this error, and the other changes of the slot. The state is
    `error` if the next launch would be refused, too.
    """
    outcome = find_outcome(error)
    changes = {"reason": f"{outcome}: {error.code}", "refusal": describe_error(error.code, error.message)}
    if outcome == "misconfigured":
        return "error", changes | {"error": outcome}
    return "empty", changes
