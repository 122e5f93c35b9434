"""Books the costs of machines that have no slot, from the time of their launch as EC2 reports it.

The database has for each such machine the time until which it is booked. Each sweep that finds the machine books the
time since then, and so does the call that ends the machine. A repeated sweep or message finds nothing left to book. If
a process is killed before the machine ends, the next sweep books the rest.
"""

from collections.abc import Iterable, Mapping, Sequence

from scheduler.model.costs import measure
from scheduler.model.market import StoredMarket
from scheduler.model.pools import Pool
from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Meter, Slot
from scheduler.operations.ports import Ports
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.scaling.offerings import list_configured


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


def end_unbound(ports: Ports, rules: Rules, machines: Sequence[Machine], accounts: Mapping[str, str]) -> None:
    """Book the costs of these machines, which have no slot and get none, and terminate the machines. Raises CloudError
    if EC2 refuses.
    """
    if not machines:
        return
    market = load_prices(ports, rules, machines)
    with ports.store.transaction() as transaction:
        book_unbound(UnitOfWork(transaction, "cloud"), rules, machines, accounts, market)
    ports.fleet.terminate([machine.id for machine in machines])


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
