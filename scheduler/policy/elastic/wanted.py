"""How many elastic instances the holder of a leased reservation wants, and which it gave back.

Both are in `Reservation.declined`, until the next assignment. An instance that the holder gave back has its own name
there, and is not granted again. `NAME=N` is the number of instances of the component NAME that the holder wants at most
(no name contains `=`).
"""

from collections.abc import Sequence

from scheduler.model.reservations import Component, Reservation, list_wants


def find_wanted(component: Component, declined: Sequence[str]) -> tuple[int, frozenset[int]]:
    """Return what a holder wants of a component: (the most instances, the numbers of the instances that are not granted
    again). `declined`: the field of its leased reservation.
    """
    if not declined:
        return component.count, frozenset()
    returned = (find_number(component, entry) for entry in declined)
    most = list_wants(declined).get(component.name, component.count)
    return most, frozenset(number for number in returned if number is not None)


def list_unwanted(current: Reservation, names: Sequence[str]) -> set[str]:
    """Return which of these elastic instances the holder of a leased reservation does not want beside those that it
    has. The instances before an instance in `names` count as had.
    """
    unwanted = set[str]()
    counts = dict[str, int]()
    for name in names if current.declined else ():
        component = find_elastic(current, name)
        if component is None:
            continue
        if component.name not in counts:
            counts[component.name] = sum(find_number(component, each.component) is not None for each in current.leases)
        most, returned = find_wanted(component, current.declined)
        if find_number(component, name) in returned or counts[component.name] >= most:
            unwanted.add(name)
        else:
            counts[component.name] += 1
    return unwanted


def change_wanted(component: Component, declined: Sequence[str], most: int) -> tuple[str, ...]:
    """Return the field `declined` of a leased reservation whose holder wants at most this number of instances of a
    component from now on, whichever of them it gave back before.
    """
    others = (
        entry
        for entry in declined
        if entry.partition("=")[0] != component.name and find_number(component, entry) is None
    )
    return (*others, f"{component.name}={most}") if most < component.count else (*others,)


def find_elastic(current: Reservation, name: str) -> Component | None:
    """Return the elastic component of a reservation that has this name, or an instance with this name; None if there is
    none.
    """
    elastic = (each for each in current.request.components if each.kind == "elastic")
    return next((each for each in elastic if name == each.name or find_number(each, name) is not None), None)


def find_number(component: Component, name: str) -> int | None:
    """Return the number, from 0, of the component's instance with the name `name`; None if no instance has this
    name.
    """
    if component.count == 1:
        return 0 if name == component.name else None
    stem, _, digits = name.rpartition(".")
    if stem != component.name or not digits.isdecimal() or (digits[0] == "0" and digits != "0"):
        return None
    return int(digits) if int(digits) < component.count else None
