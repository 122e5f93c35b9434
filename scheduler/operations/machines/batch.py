"""Launch in bulk: one request to the cloud asks for the machines of all slots of a batch.

The request is stored on the first slot of the batch before it is sent. A machine of a batch has no tag with a slot:
only the database records which slot it belongs to, by the order of the answer. The answer is recorded once, in one
transaction that also deletes the stored request. So a task that runs twice or dies at any point launches nothing twice,
and a slot of the batch that is given up meanwhile gets no machine.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import msgspec

from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.pools import Pool
from scheduler.model.quota_classes import quota_subject
from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Slot, slot_order
from scheduler.operations.change_set import ChangeSet
from scheduler.operations.machines.launch import (
    MOST_ATTEMPTS,
    PLACED,
    REPEATED,
    describe_machine,
    find_delay,
    find_held_places,
    find_most_attempts,
    find_outcome,
    find_places,
    forget_holds,
    is_put_off,
    list_changes,
    lock_holds,
    may_have_launched,
    note_refusal,
    read_refusal,
    search_made,
)
from scheduler.operations.machines.unbound import (
    book_unbound,
    end_machines,
    find_accounts,
    find_offering,
    load_prices,
)
from scheduler.operations.machines.work import check_soon
from scheduler.operations.ports import Ports, announce
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.operations.writers.slots import describe_choice
from scheduler.policy.scaling.offerings import (
    Choice,
    find_end,
    find_rest,
    list_alternatives,
    list_configured,
    list_rest_ids,
)
from scheduler.ports import UNCLEAR, UNHEARD, BatchAnswer, BatchOrder, CloudError, ClusterRow, Place, Refusal

SHORT = "UnfulfillableCapacity"
"""Error code for a request that got fewer machines than it asked for, if EC2 names no error. Source: CreateFleet."""
GANG = "gang"
"""Key in the stored request of a batch. It is present if the machines are of use only together; its value is the id of
the gang.
"""
SLOTS = "slots"
"""Key in the stored request of a batch. Its value is the ids of the slots for which the request asks machines. A
request without this key asks for the machine of one slot.
"""
PRICES = "prices"
"""Key in the stored request of a batch. Its value is the price of each offering when the request was made. A slot gets
one of these prices, even if the table of prices changes before the answer comes.
"""


def launch_batch(ports: Ports, batch: str) -> str:
    """Request the machines of all slots of this batch that still want one, by one request. Return the outcome as one
    word, for logs and metrics.

    `success`: at least one slot got a machine; for a gang: all slots. Slots without a machine become empty, and the
    next tick plans their launches again.
    """
    rules, attempts = ports.rules(), 0
    if not (slots := _find_slots(ports, batch)):
        return "not_wanted"
    names = [slot.id for slot in slots]
    try:
        is_stored = any(is_of_batch(slot.launch_request) for slot in slots)
        places = () if is_stored else find_places(ports, rules, slots[0])
        first = _freeze(ports, rules, batch, names, places)  # promise: batch-request-stored
        if first is None or first.launch_request is None:
            return "not_wanted"
        attempts = first.attempts
        answer = ports.fleet.launch_batch(first.launch_request)
    except CloudError as error:
        return _settle_failure(ports, rules, batch, names, error, attempts)
    if not answer.machines and (attempts > 1 or answer.is_after_unclear):
        try:
            found = _find_made(ports, rules, batch, first.pool)
        except CloudError as error:
            unclear = CloudError("transient", error.code, error.message)
            return _settle_error(ports, rules, batch, names, unclear, find_most_attempts(ports, first))
        answer = _answer(first.launch_request, found, answer.refusals)
    return settle_batch(ports, rules, batch, first.launch_request, answer)


def _answer(request: dict[str, Any], found: Sequence[Machine], refusals: Sequence[Refusal]) -> BatchAnswer:
    """Return the answer to a request whose machines were found by their tag. `refusals`: why other machines of the
    request are missing.
    """
    is_short = len(found) < len(request[SLOTS])
    return BatchAnswer(machines=tuple(found), refusals=tuple(refusals) if is_short else ())


def _find_made(ports: Ports, rules: Rules, batch: str, pool: str) -> tuple[Machine, ...]:
    """Return the machines that the request of a batch has launched, by their tag, with their offerings. Running ones
    come first.
    """
    found, configured = ports.fleet.find_batch(batch), rules.pools.get(pool)
    found.sort(key=lambda machine: (machine.state in {"stopping", "stopped"}, machine.id))
    if configured is None:
        return tuple(found)
    return tuple(msgspec.structs.replace(each, offering=find_offering(configured, each)) for each in found)


def is_of_batch(request: dict[str, Any] | None) -> bool:
    """Return whether this stored launch request asks for the machines of a batch of slots. Return False if there is no
    request (None).
    """
    return request is not None and SLOTS in request


def find_request(ports: Ports, batch: str) -> dict[str, Any] | None:
    """Return the stored request for the machines of a batch of slots, if its answer has not been recorded yet; None if
    there is no such request.
    """
    stored = (slot.launch_request for slot in ports.store.find_slots(states=["launching", "terminating"]))
    of_batch = (request for request in stored if request is not None and request.get("batch") == batch)
    return next(of_batch, None)


def end_batch(ports: Ports, batch: str, *, tries: int) -> None:
    """Send the request for the machines of a batch of slots again, because some of the slots were given up before the
    answer was recorded. The answer shows which machines the request has launched: each machine is given to a slot that
    still wants one, or is terminated.

    If there is no such answer, the machines are searched by their tag. `tries`: how often this was tried before. After
    `MOST_ATTEMPTS` tries only the search counts, and later the request is not sent again. Raises CloudError while the
    outcome is unknown.
    """
    request = find_request(ports, batch)
    if request is None:
        return
    rules, answer = ports.rules(), BatchAnswer(machines=())
    if tries <= MOST_ATTEMPTS:
        try:
            answer = ports.fleet.launch_batch(request)
        except CloudError as error:
            if error.category in UNCLEAR | UNHEARD and tries < MOST_ATTEMPTS:
                raise
    if not answer.machines:
        answer = BatchAnswer(machines=_find_made(ports, rules, batch, request["pool"]))
    settle_batch(ports, rules, batch, request, answer)


def _find_slots(ports: Ports, batch: str) -> list[Slot]:
    found = ports.store.find_slots(states=["launching", "terminating"])
    return sorted((slot for slot in found if slot.batch == batch), key=lambda slot: slot_order(slot.id))


def _wants_machine(slot: Slot, batch: str) -> bool:
    return slot.state == "launching" and slot.batch == batch


@repeated_if_overtaken
def _freeze(ports: Ports, rules: Rules, batch: str, names: Sequence[str], places: tuple[Place, ...]) -> Slot | None:
    """Store the request of a batch on its first slot that wants a machine, and count the attempt, before the request is
    sent. Return this slot, or None if no slot wants a machine or the next attempt is not due.

    A request that is stored already is not changed, even if slots of the batch were given up since.
    """
    cluster = ports.store.read_cluster()
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        slots = [slot for slot in transaction.load_slots(names).values() if slot.batch == batch]
        slots.sort(key=lambda slot: slot_order(slot.id))
        wanting = [slot for slot in slots if _wants_machine(slot, batch)]
        first = next((slot for slot in slots if is_of_batch(slot.launch_request)), None) or next(iter(wanting), None)
        if first is None or not wanting or is_put_off(first, work.now):
            return None
        request = first.launch_request
        if request is None:
            order = _order(work, rules, wanting, cluster, places)
            choices = list_configured(rules.pools[first.pool]) if first.pool in rules.pools else []
            request = {
                **ports.fleet.freeze_batch(order, rules),
                "batch": batch,
                "pool": first.pool,
                SLOTS: [slot.id for slot in wanting],
                **({GANG: first.gang} if first.gang else {}),
                PRICES: {each.key: each.price for each in choices if each.key in order.offerings},
            }
        frozen = msgspec.structs.replace(first, launch_request=request, attempts=first.attempts + 1)
        pool, is_new = rules.pools.get(first.pool), first.launch_request is None
        if pool is None or not is_new:
            transaction.save([frozen])
            return frozen
        # The rules may have changed since the launches were decided; the request has the present ones.
        digest = {"launch_digest": pool.launch_digest}
        frozen = msgspec.structs.replace(frozen, **digest)
        others = (slot for slot in wanting if slot.id != first.id and slot.launch_digest != pool.launch_digest)
        transaction.save([frozen, *(msgspec.structs.replace(slot, **digest) for slot in others)])
        return frozen


def _order(
    work: UnitOfWork, rules: Rules, slots: Sequence[Slot], cluster: ClusterRow, places: tuple[Place, ...]
) -> BatchOrder:
    """Return the order for the machines of these slots, which are launched with the same offering."""
    first = slots[0]
    pool = rules.pools.get(first.pool)
    chosen = _find_choice(pool, first.offering)
    offerings: tuple[str, ...] = ()
    if pool is not None and chosen is not None and chosen.key is not None:
        choices = list_alternatives(pool, chosen, _list_held(work, pool, first.pool, chosen.market))
        # The plan counted the price of the slot against the budgets, which may have changed since: no alternative may
        # cost more.
        is_limited = any(each.is_limit and each.may_cover(first.pool) for each in rules.budgets.values())
        most = inf if not is_limited else chosen.price if first.price is None else first.price
        # The planned offering keeps the price of its slots, so it is always one of them.
        wanted_keys = [each.key for each in choices if each.price <= most or each.key == chosen.key]
        offerings = tuple(key for key in wanted_keys if key is not None)
    return BatchOrder(
        batch=first.batch or "",
        pool=first.pool,
        count=len(slots),
        offerings=offerings,
        is_gang=first.gang is not None,
        cluster_id=cluster.identity,
        highest=f"{cluster.term}.{cluster.token}",
        places=places,
        held_places=find_held_places(work, pool, first.pool, offerings or [None]),
    )


def _list_held(work: UnitOfWork, pool: Pool, name: str, market: str) -> set[str | None]:
    """Return the keys of the offerings of a market whose launches rest now."""
    choices = [choice for choice in list_configured(pool) if choice.market == market and choice.key is not None]
    own = {
        each.key: [hold_id(name, "quota", quota_subject(pool, each.key, market)), hold_id(name, "auth", each.key or "")]
        for each in choices
    }
    rests = [ids for choice in choices for ids in list_rest_ids(name, pool, choice, PLACED)]
    holds = work.transaction.load_holds(sorted({each for ids in (*own.values(), *rests) for each in ids}))

    def lasts(hold: Hold | None) -> bool:
        return hold is not None and work.now < find_end(pool, market, hold)

    return {
        choice.key
        for choice in choices
        if find_rest(name, pool, choice, holds, PLACED, lasts)
        or any(lasts(holds.get(each)) for each in own[choice.key])
    }


def _find_choice(pool: Pool | None, key: str | None) -> Choice | None:
    return next((each for each in list_configured(pool) if each.key == key), None) if pool is not None else None


def settle_batch(ports: Ports, rules: Rules, batch: str, request: dict[str, Any], answer: BatchAnswer) -> str:
    """Record the answer to the one request for the machines of a batch of slots. An answer is recorded only once.
    Return the outcome as one word, for logs and metrics.

    The machines of the answer are given, in its order, to the slots that want one. Slots for which there is no machine
    become empty, and each refusal pauses launches, as the refusal of a single launch does. Slots that were given up
    meanwhile become empty. Machines that no slot wants are terminated. If EC2 refuses some of them, that is recorded,
    and the sweep for machines without a slot repeats it. If the call fails, CloudError is raised, and the sweep
    terminates these machines. If a gang lacks a machine, the slots of its other machines are terminated at once: the
    machines would cost money and serve nothing until the gang is complete.
    """
    bound, left, change_set = _record(ports, rules, batch, request, answer)
    if change_set is None:
        return REPEATED
    if left:
        end_machines(ports, left)  # promise: batch-rest-ended
    announce(ports, change_set, kick=change_set.turned_slots)
    is_complete = not is_partial(request, answer)
    if bound and is_complete:
        check_soon(ports, [slot for slot, _ in bound])
    results = Counter((machine.offering, "success") for _, machine in bound)
    missing = len(request[SLOTS]) - len(answer.machines)
    if missing > 0 and answer.refusals:
        results[answer.refusals[-1].offering, answer.refusals[-1].category] += missing
    for (offering, result), count in results.items():
        labels = {"pool": request["pool"], "offering": offering or "", "result": result}
        ports.meter.count("leasehold_launches_total", labels, count)
    if bound and is_complete:
        return "success"
    return answer.refusals[-1].category if answer.refusals else "capacity" if bound else "aborted"


def is_partial(request: dict[str, Any], answer: BatchAnswer) -> bool:
    """Return whether the answer has some machines of a gang, but not all."""
    return GANG in request and 0 < len(answer.machines) < len(request[SLOTS])


@repeated_if_overtaken
def _record(
    ports: Ports, rules: Rules, batch: str, request: dict[str, Any], answer: BatchAnswer
) -> tuple[list[tuple[str, Machine]], list[Machine], ChangeSet | None]:
    """Write the answer to the request of a batch. Return three things: (1) the slots that got a machine, each with its
    machine; (2) the machines that no slot wants; (3) the changes, or None if the answer was recorded before.
    """
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        work.slots = transaction.load_slots(request[SLOTS])
        slots = [work.slots[name] for name in request[SLOTS] if name in work.slots]
        first = next((slot for slot in slots if is_of_batch(slot.launch_request)), None)
        if first is None or first.batch != batch:  # promise: batch-answer-once
            return [], [], None
        wanting = [slot for slot in slots if _wants_machine(slot, batch)]
        pool = rules.pools.get(first.pool)
        bound = list(zip(wanting, answer.machines, strict=False))
        for slot, machine in bound:
            _bind(work, pool, slot, machine, request.get(PRICES, {}))
        refusals = answer.refusals if not answer.machines else tuple(map(_narrow, answer.refusals))
        if is_partial(request, answer):
            # A hold even if EC2 names no error. Otherwise the next tick would buy the same incomplete gang again.
            refusals = refusals or (Refusal(offering=first.offering, category="capacity", code=SHORT),)
            for slot, _ in bound:
                work.move_slot(work.slots[slot.id], "terminating", reason="gang_incomplete")  # promise: gang-whole
        if bound and not refusals:
            launched = {(machine.offering, machine.zone, machine.subnet) for _, machine in bound}
            forget_holds(
                work,
                rules,
                [msgspec.structs.replace(first, offering=key, zone=zone, subnet=net) for key, zone, net in launched],
            )
        _refuse(work, pool, first, wanting[len(bound) :], refusals)
        _clear(work, slots, batch)
        change_set = work.flush()
        left = list(answer.machines[len(wanting) :])
        book_unbound(work, rules, left, find_accounts(slots), load_prices(ports, rules, left))
    return [(slot.id, machine) for slot, machine in bound], left, change_set


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


def _bind(work: UnitOfWork, pool: Pool | None, slot: Slot, machine: Machine, prices: Mapping[str, float]) -> None:
    """Store this machine on a slot. If the machine has another offering than was planned for the slot, the slot gets
    the resources of that offering, and the price that the offering had when the request was made (`prices`). If
    `prices` has no such price (as in requests of older versions), the slot gets the present price. `pool` None: the
    rules no longer have the pool.
    """
    choice = _find_choice(pool, machine.offering) if machine.offering != slot.offering else None
    changes: dict[str, Any] = {}
    if choice is not None:
        changes = describe_choice(choice) | {"price": prices.get(choice.key or "", choice.price)}
    work.move_slot(
        slot,
        "booting",
        attempts=0,
        launch_request=None,
        last_seen=work.now,
        **describe_machine(machine, pool),
        **changes,
    )


def _refuse(
    work: UnitOfWork, pool: Pool | None, first: Slot, slots: Sequence[Slot], refusals: Sequence[Refusal]
) -> None:
    """Move the slots for which a batch got no machine to the state `empty`, or to `error` if the last refusal is a
    wrong configuration. Stage the pauses of launches that the refusals cause, if the rules still have the pool (`pool`
    not None).

    `slots`: the slots without a machine. `first`: a slot of the batch, as it was before this transaction changed it;
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
    ports: Ports, rules: Rules, batch: str, names: Sequence[str], error: CloudError, attempts: int
) -> str:
    """Settle the failed request of a batch, with the machines that an earlier attempt has launched, if there are any.
    `attempts`: how often the request was sent. Return the outcome as one word.
    """
    request = find_request(ports, batch)
    first = next(iter(ports.store.find_slots(ids=names)))
    most = find_most_attempts(ports, first)
    found, error = search_made(lambda: list(_find_made(ports, rules, batch, first.pool)), error, attempts, most)
    if not found or request is None:
        return _settle_error(ports, rules, batch, names, error, most)
    answer = _answer(request, found, _list_refusals(request, first, error))
    return settle_batch(ports, rules, batch, request, answer)


def _list_refusals(request: dict[str, Any] | None, first: Slot, error: CloudError) -> list[Refusal]:
    """Return the refusals that an error of the whole request means: of all its offerings, if the error is about
    offerings or their quota classes. `first`: a slot of the batch, whose offering is meant if no request is stored.
    """
    offerings = [key or None for key in (request or {}).get("offerings", ())]
    if not offerings or error.scope not in {"offering", "class"}:
        offerings = [first.offering]
    return [error.refuse(key) for key in offerings]


@repeated_if_overtaken
def _settle_error(ports: Ports, rules: Rules, batch: str, names: Sequence[str], error: CloudError, most: int) -> str:
    """Record that the one request for the machines of a batch of slots failed. Return the category of the error.

    After an unclear outcome the same request is sent again, at most `most` times. After a definite refusal the slots
    become empty or `error`, as after the refusal of a single launch.
    """
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        work.slots = transaction.load_slots(names)
        slots = [work.slots[name] for name in names if name in work.slots and work.slots[name].batch == batch]
        wanting = [slot for slot in slots if _wants_machine(slot, batch)]
        first = next((slot for slot in slots if is_of_batch(slot.launch_request)), None) or next(iter(wanting), None)
        if first is None:
            return "aborted"
        pool, category = rules.pools.get(first.pool), error.category
        if may_have_launched(category, first.attempts, most):
            due = work.now + find_delay(first.attempts)
            work.put(msgspec.structs.replace(first, not_before=due, sent_at=0.0))
            if category not in UNHEARD:
                category = "transient"
            elif pool is not None:
                note_refusal(work, pool, first, read_refusal(first, error), is_definite=False)
        else:
            category = find_outcome(error)
            _refuse(work, pool, first, wanting, _list_refusals(first.launch_request, first, error))
            _clear(work, slots, batch)
        change_set = work.flush()
    announce(ports, change_set, kick=change_set.turned_slots)
    labels = {"pool": first.pool, "offering": first.offering or "", "result": category}
    ports.meter.count("leasehold_launches_total", labels, max(1, len(wanting)))
    return category
