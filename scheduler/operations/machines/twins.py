"""Signs of life: each installation of a cluster renews a tag on a few of its machines, so that another installation
with a copy of the database (such as one for tests, made from a backup) does not end machines that it does not know.

Both have the same cluster identity. They have different Redis servers, and the name of an installation is in Redis.
"""

from collections.abc import Sequence
from contextlib import suppress
from math import inf
from typing import Final

from scheduler.model.slots import Machine, Slot
from scheduler.operations.ports import Ports
from scheduler.ports import CloudError

RENEW_SECONDS: Final = 900.0
"""Seconds after which an installation renews its sign of life: one call of EC2, on at most MOST_SIGNED machines."""
FRESH_SECONDS: Final = 3 * RENEW_SECONDS
"""Age in seconds from which a sign of life no longer counts."""
MOST_SIGNED: Final = 3
MOST_DIGITS: Final = 12
LEAST_AGE_SECONDS: Final = 60.0
"""Age in seconds from which a machine gets a sign, and the shortest time between two calls that sign machines. So a new
machine has a sign before another installation may end it as a machine without a slot.
"""


def watch_twins(ports: Ports, machines: Sequence[Machine], slots: Sequence[Slot], now: float) -> Machine | None:
    """Return a machine with a fresh sign of life of another installation of this cluster; None if there is none. Renew
    the signs of this installation on its own machines if it is time. Without the permission to tag there are none.

    A fresh sign of another installation is never overwritten, so each of the two sees that of the other.
    """
    if ports.record is None:
        return None
    name = ports.record.name_installation()
    others = [each for each in machines if _is_fresh(each, name, now)]
    known = {slot.instance_id for slot in slots if slot.instance_id}
    own = [
        each
        for each in machines
        if each.id in known
        and each not in others
        and each.launched_at is not None
        and now - each.launched_at >= LEAST_AGE_SECONDS
    ]
    chosen = sorted(own, key=lambda each: (not each.alive.startswith(name), each.launched_at or 0.0, each.id))[
        :MOST_SIGNED
    ]
    due = [each for each in chosen if not each.alive.startswith(name) or _find_age(each, now) >= RENEW_SECONDS]
    if due and ports.record.take_turn(LEAST_AGE_SECONDS):
        with suppress(CloudError):
            ports.fleet.show_life([each.id for each in chosen], f"{name} {now:.0f}")
    return next(iter(others), None)


def leave_to_twin(machines: Sequence[Machine], slots: Sequence[Slot]) -> list[Machine]:
    """Return the machines that have a launch or a slot in this database. The others belong to another installation."""
    launches = {name for slot in slots for name in (slot.launch_id, slot.batch) if name}
    known = {slot.instance_id for slot in slots}
    return [each for each in machines if each.id in known or {each.launch_id, each.batch} & launches]


def _is_fresh(machine: Machine, own: str, now: float) -> bool:
    """Return whether a machine has a fresh sign of another installation than `own`. The clocks of two databases may
    differ, so a sign may also be of a later time.
    """
    name = machine.alive.partition(" ")[0]
    return bool(name) and name != own and _find_age(machine, now) <= FRESH_SECONDS


def _find_age(machine: Machine, now: float) -> float:
    """Return the age of a machine's sign in seconds; infinity if its time cannot be read."""
    at = machine.alive.partition(" ")[2]
    return abs(now - int(at)) if at.isdigit() and len(at) <= MOST_DIGITS else inf
