"""What would have to be true for a waiting reservation to get a lease, where no change of rows or rules makes it so.

The sentences name machines that do not exist, or events outside: they are no changes, and nothing carries them out.
"""

from collections.abc import Collection, Iterator, Sequence

from scheduler.explain.search import describe_amounts, describe_labels, list_components, required_labels
from scheduler.model.reservations import Component, Reservation
from scheduler.model.rules import Rules
from scheduler.model.waiting_codes import ENTRIES, UNSERVABLE, WaitingCode
from scheduler.policy.capacity.fits import given_to


def list_needs(rules: Rules, row: Reservation, code: WaitingCode, unfit: Collection[Component]) -> Iterator[str]:
    """Yield what would have to be true for a lease of a reservation that waits with this waiting code: a text for each
    component without a machine, or one text about the code. `unfit`: the components that no slot or offering could
    hold, even empty.
    """
    if (needs := ENTRIES[code].needs) is not None:
        yield needs
        return
    pools = rules.serving_pools(row.request.pool, row.request.system)
    for component in list_components(row):
        shared = row.request.labels.keys() & component.labels.keys()
        clash = next((name for name in sorted(shared) if row.request.labels[name] != component.labels[name]), None)
        if clash is not None:
            texts = [describe_labels({clash: each[clash]}) for each in (row.request.labels, component.labels)]
            yield f"{component.name} requires only one of the labels {' and '.join(texts)}"
        elif code in UNSERVABLE and (component in unfit or code == "no_pool"):
            yield _describe_machines(rules, row, component, pools)
        elif code not in UNSERVABLE:
            yield _describe_room(rules, row, component, pools)


def _describe_machines(rules: Rules, row: Reservation, component: Component, pools: Sequence[str]) -> str:
    held = _describe_held(rules, row, component, pools)
    if not pools and row.request.pool is not None:
        return f"a pool with the name {row.request.pool}" + (f", whose machines have {held}" if held else "")
    if pools and not any(rules.pools[name].is_elastic for name in pools):
        return f"a host with {held or 'room'} in pool {' or '.join(pools)}"
    serves = f"the pool {row.request.pool}" if row.request.pool is not None else f"a pool for {row.request.system}"
    return f"{serves} whose machines have {held}" if held else serves


def _describe_room(rules: Rules, row: Reservation, component: Component, pools: Sequence[str]) -> str:
    held = _describe_held(rules, row, component, pools, least="")
    size = f" with {held}" if held else ""
    count = "a free place" if component.count == 1 else f"{component.count} free places"
    ways = "leases there end, or more machines come"
    return f"{count}{size} for {component.name} in pool {' or '.join(pools)}: {ways}"


def _describe_held(
    rules: Rules, row: Reservation, component: Component, pools: Sequence[str], least: str = "at least "
) -> str:
    """Return what a machine must have for one instance of the component: "at least 4 cpus and the label disk=ssd"."""
    wanted = given_to(component, rules.pools[pools[0]]) if pools else component.resources
    amounts, labels = describe_amounts(wanted), required_labels(row, component)
    named = f"the label{'s' if len(labels) > 1 else ''} {describe_labels(labels)}" if labels else ""
    return " and ".join(filter(None, [f"{least}{amounts}" if amounts else "", named]))
