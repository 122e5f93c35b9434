"""Ends machines that have no slot, and books their costs, from the time of their launch as EC2 reports it.

The database has for each such machine the time until which it is booked. Each sweep that finds the machine books the
time since then, and so does the call that ends the machine. A repeated sweep or message finds nothing left to book. If
a process is killed before the machine ends, the next sweep books the rest.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from scheduler.model.costs import measure
from scheduler.model.launch_backoff import Hold, find_pause, hold_id
from scheduler.model.market import StoredMarket
from scheduler.model.pools import Pool
from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Meter, Slot
from scheduler.operations.ports import Ports, announce, cloud_work
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.scaling.offerings import list_configured
from scheduler.ports import MOST_MESSAGE, CloudError

ORPHAN_REFUSED: Final = "machine_end_refused"
"""Name of the event that EC2 refuses to terminate a machine without a slot."""
STRANGER_SECONDS: Final = 180.0
"""A sweep lists the machines of the cluster in EC2. For this number of seconds after a sweep, the machines without a
slot that it found count towards `max_slots`.
"""
REFUSED_PAUSE: Final = 60.0
"""Seconds until a machine without a slot that EC2 refuses to end is tried again, after the first and the second
refusal. The pauses then grow: see `model.launch_backoff.find_pause`.
"""
NOT_REFUSED: Final[Mapping[str, Any]] = {"code": "", "message": "", "streak": 1, "delay": 0.0, "decided_at": 0.0}
"""Field values of the row that counts the machines without a slot of a pool, if EC2 refuses to end none of them."""


def book_unbound(
    work: UnitOfWork, rules: Rules, machines: Sequence[Machine], accounts: Mapping[str, str], market: StoredMarket
) -> None:
    """Book the costs of these machines, with the kind `unbound`, for the time until now that is not booked yet.

    `accounts`: id of a launch or batch -> the account whose demand caused it; a machine of another launch is booked for
    no account. `market`: the table of prices, from `load_prices`. A machine that is stopped now is booked without a
    price. Call it last in the transaction, because the rows of these machines are locked after all others.
    """
    if not machines:
        return
    born = {each.id: work.now if each.launched_at is None else each.launched_at for each in machines}
    begins = work.transaction.take_unbooked(born)  # promise: unbound-booked-once
    for machine in machines:
        offering, price = _find_price(rules, market, machine)
        account = accounts.get(machine.batch or machine.launch_id or "", "")
        meter = Meter(begins[machine.id], "unbound", offering, account, None if machine.state == "stopped" else price)
        work.transaction.book(list(measure(machine.pool or "", meter, work.now)))


def end_unbound(
    ports: Ports, rules: Rules, machines: Sequence[Machine], accounts: Mapping[str, str], *, is_repeated: bool = False
) -> int:
    """Book the costs of these machines, which have no slot and get none, and terminate the machines. Return how many
    of them EC2 refused. `is_repeated` and errors: as of `end_machines`.
    """
    if not machines:
        return 0
    market = load_prices(ports, rules, machines)
    with cloud_work(ports) as work:
        book_unbound(work, rules, machines, accounts, market)
    return end_machines(ports, machines, is_repeated=is_repeated)


def end_machines(ports: Ports, machines: Sequence[Machine], *, is_repeated: bool = False) -> int:
    """Terminate these machines, which have no slot. If EC2 refuses some of them, record that, and return their number;
    the sweep for machines without a slot repeats their ends, with growing pauses.

    `is_repeated`: EC2 has refused these machines before. Raises CloudError if the whole call fails.
    """
    errors = ports.fleet.terminate([machine.id for machine in machines])
    # The rest of a call that broke off was not refused.
    refused = [each for each in machines if each.id in errors and errors[each.id].may_concern_one]
    if refused:
        _note_refused(ports, refused, errors, is_repeated=is_repeated)
    return len(refused)


@repeated_if_overtaken
def _note_refused(
    ports: Ports, machines: Sequence[Machine], errors: Mapping[str, CloudError], *, is_repeated: bool
) -> None:
    """Store what EC2 answered in the rows that count the machines without a slot of each pool. Append an event for each
    of these machines that EC2 had not refused with the same code before.
    """
    pools: dict[str, list[Machine]] = {}
    for machine in machines:
        pools.setdefault(machine.pool or "", []).append(machine)
    with cloud_work(ports) as work:
        known = work.transaction.load_holds(sorted(hold_id(pool, "strangers") for pool in pools))
        for pool, group in pools.items():
            hold = known.get(hold_id(pool, "strangers")) or make_hold(pool, len(group), None, work.now)
            for machine in group:
                if not is_repeated or hold.code != errors[machine.id].code:
                    work.note(
                        ORPHAN_REFUSED,
                        {
                            "instance": machine.id,
                            "pool": machine.pool,
                            "slot": machine.slot,
                            "refusal": errors[machine.id].answer,
                        },
                        cause="cloud",
                    )
            error, streak = errors[group[-1].id], hold.streak + 1 if hold.code else 1
            answer = {"code": error.code, "message": error.message[:MOST_MESSAGE], "streak": streak}
            work.put(
                msgspec.structs.replace(hold, **answer, delay=find_pause(REFUSED_PAUSE, streak), decided_at=work.now)
            )
        change_set = work.flush()
    announce(ports, change_set, kick=False)
    for event in change_set.events:
        ports.warn("EC2 refuses to end a machine without a slot.", action="machine.refused", **event.detail)


def make_hold(pool: str, count: int, known: Hold | None, now: float) -> Hold:
    """Return the row with the number of machines of a pool that have no slot. `known`: the present row; None: there is
    none. What EC2 answered when it refused to end them is kept.
    """
    fields: dict[str, Any] = {"active": count, "until": now + STRANGER_SECONDS}
    if known is not None:
        return msgspec.structs.replace(known, **fields)
    return Hold(id=hold_id(pool, "strangers"), pool=pool, kind="strangers", refused_at=now, **fields)


def find_accounts(slots: Iterable[Slot]) -> dict[str, str]:
    """Return launch or batch id -> the account for whose demand its slots were launched. If the slots of a batch were
    launched for several accounts, or those of a launch for no account, its id is missing.
    """
    found: dict[str, set[str]] = {}
    for slot in slots:
        found.setdefault(slot.batch or slot.launch_id or "", set()).add(slot.launched_for or "")
    return {launch: name for launch, names in found.items() if launch and len(names) == 1 and (name := min(names))}


def find_offering(pool: Pool, machine: Machine) -> str | None:
    """Return the key of the machine's offering. That is the offering in its tag, else the offering with the type,
    market and zone of the machine, else its type. Return None if the pool has no offerings.
    """
    if machine.offering or not pool.offerings:
        return machine.offering
    alike = (
        key
        for key, offering in pool.offering_by_key.items()
        if (offering.instance_type, offering.market) == (machine.type, machine.market)
        and offering.zone in {None, machine.zone}
    )
    return next(alike, machine.type)


def load_prices(ports: Ports, rules: Rules, machines: Iterable[Machine]) -> StoredMarket:
    """Return the table of prices that `book_unbound` needs. If the rules have a price for the offering of each of these
    machines, the table, which is large, is not read, and the result has no prices. Call it before the transaction if
    the machines are known by then.
    """
    needs_table = any(not _find_offering_price(rules, machine)[1] for machine in machines)
    return ports.store.load_market() if needs_table else StoredMarket()


def _find_price(rules: Rules, market: StoredMarket, machine: Machine) -> tuple[str, float | None]:
    """Return two things: the key of the machine's offering, and a price. The price is that of the offering in the
    rules; else that of the machine's type, market and zone in the table of prices; else None.
    """
    key, price = _find_offering_price(rules, machine)
    if not price and machine.type and machine.market:
        known = market.find_price(machine.type, machine.market, [machine.zone] if machine.zone else ())
        price = known.price if known else 0.0
    return key, price or None


def _find_offering_price(rules: Rules, machine: Machine) -> tuple[str, float]:
    """Return two things: the key of the machine's offering, and the price of this offering in the rules (0.0 if the
    rules have none).
    """
    pool = rules.pools.get(machine.pool or "")
    key = (find_offering(pool, machine) if pool else machine.offering or machine.type) or ""
    choices = list_configured(pool) if pool else []
    return key, next((each.price for each in choices if each.key == key), 0.0)
