"""The history of the last hour: a sample of the fleet and the queue every SAMPLE_SECONDS, in a ring of SAMPLES places.

The place of a sample follows from its time. So every process writes the sample of a time to the same place, and the
ring needs no cursor and never grows. An older sample in the place is replaced.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from scheduler.model.reservations import Lease
from scheduler.model.slots import Slot
from scheduler.model.transitions import WITH_MACHINE
from scheduler.model.view import View

SAMPLE_SECONDS: Final = 10
SAMPLES: Final = 360
HOUR_SECONDS: Final = SAMPLE_SECONDS * SAMPLES
_SETTLED_SECONDS: Final = 5.0
"""A launch is counted this many seconds after it was decided, because a view may lack the newest rows."""


class Sample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The state of a cluster at one time. `at`: cluster time. `waiting`: the number of waiting reservations.
    `longest_wait`: seconds, as in the report of a tick. `leased`: the share of the running machines that is leased, 0
    to 1; None: no machine runs. `launches`: the machines launched since the sample before.
    """

    at: float
    waiting: int
    longest_wait: float
    leased: float | None
    launches: int


def find_place(at: float) -> int:
    return int(at // SAMPLE_SECONDS) % SAMPLES


def take_sample(view: View, waiting: int, longest_wait: float, now: float, seconds: int = SAMPLE_SECONDS) -> Sample:
    """Return the sample of this time. `seconds`: how far the sample before it lies back. The machines launched in that
    time are counted by the times of their launches, so that any process may take the next sample.
    """
    end = now // seconds * seconds - _SETTLED_SECONDS
    running = launches = 0
    used = 0.0
    for slot in view.slots.values():
        launches += slot.launched_at is not None and end - seconds <= slot.launched_at < end
        if slot.state in WITH_MACHINE:
            running += 1
            if leases := view.leases_on.get(slot.id):
                used += min(1.0, sum(find_share(slot, lease, len(leases)) for lease in leases.values()))
    leased = round(used / running, 4) if running else None
    return Sample(round(now, 1), waiting, round(longest_wait, 1), leased, launches)


def find_share(slot: Slot, lease: Lease, count: int) -> float:
    """Return the share of a slot that a lease fills: the largest share of any resource. If the slot has no resources,
    its `count` leases fill it equally.
    """
    taken = lease.resources
    shares = [taken[name] / amount for name, amount in (slot.resources or {}).items() if name in taken and amount > 0]
    return max(shares, default=0.0) or 1 / max(1, count)


def find_last_hour(samples: Iterable[Sample], now: float) -> list[Sample]:
    """Return the samples of the last hour, the oldest first. A place that was not written since then has an older
    one.
    """
    return sorted(
        (each for each in samples if now - HOUR_SECONDS < each.at <= now + SAMPLE_SECONDS), key=lambda each: each.at
    )
