"""What the page Fleet shows about the age and the replacement of a slot's machine: its age, its image, how it differs
from what its pool launches now, and whether it is to be replaced.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Final

from leasehold.errors import Unavailable
from leasehold.web.backend import Backend
from scheduler.model.lives import find_drift, find_end_of_life
from scheduler.model.pools import Pool
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot, find_requested_image
from scheduler.ports import RulesVersion, Store

PARTS: Final = {
    "template": "launch template",
    "image": "image",
    "user_data": "user data",
    "network": "subnets or groups",
    "machine": "profile, key or volume",
    "tags": "tags",
}
"""Part of the settings from which a machine is launched -> its name for people."""


@dataclass(frozen=True)
class SlotLife:
    """What the page Fleet shows about the age and the replacement of one machine. `age`: seconds since its launch;
    None: the slot has no machine.
    """

    age: float | None = None
    image: str = ""
    """The id of the image; "": it is not known."""
    drift: tuple[str, ...] = ()
    """The parts of its settings (values of PARTS) in which the machine differs from what its pool launches now."""
    due: str = ""
    """Why the machine is to be replaced; "": it is not."""
    ends_at: float | None = None
    """Cluster time in seconds at which the machine will be too old for its pool; None: never, or it is to be replaced
    already.
    """


Describe = Callable[[Slot], SlotLife]


def describe_life(slot: Slot, pool: Pool | None, now: float) -> SlotLife:
    """Return what the page Fleet shows about the age and the replacement of a slot's machine. `now`: cluster time.
    `pool`: the pool of the slot in the rules in force; None: the rules have no such pool or are not known.
    """
    if slot.launched_at is None or slot.instance_id is None:
        return SlotLife()
    age = max(0.0, now - slot.launched_at)
    if pool is None or not pool.is_elastic:
        return SlotLife(age, find_image(slot, None))
    rules, drift = pool.replacement, find_drift(slot, pool.launch_digest)
    end = find_end_of_life(slot, rules) if rules.max_age else float("inf")
    reasons = ["it has drifted"] if drift and rules.drift == "replace" else []
    reasons += ["it is too old"] if end <= now else []
    return SlotLife(
        age=age,
        image=find_image(slot, pool),
        drift=tuple(PARTS.get(each, each) for each in drift),
        due=" and ".join(reasons),
        ends_at=end if isfinite(end) and not reasons else None,
    )


def find_image(slot: Slot, pool: Pool | None) -> str:
    """Return the image of a slot's machine: the image in its launch request, else the image of its pool if the machine
    was launched from the same image settings. Return "" if the image is not known.
    """
    image = find_requested_image(slot.launch_request)
    if image is None and pool is not None and slot.launch_digest is not None:
        image = None if "image" in find_drift(slot, pool.launch_digest) else pool.ec2.image
    return image or ""


class LifeReader:
    """Makes functions that describe the age and the replacement of machines by the rules in force. The rules are read
    again when their version changes.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: tuple[RulesVersion, Rules] | None = None

    async def open(self, backend: Backend) -> Describe:
        """Return a function that calls `describe_life` for a slot with its pool in the rules in force. While the
        database does not answer, the function uses the rules that were read last.
        """
        try:
            now = await backend.run(self._follow, backend.store)
        except Unavailable:
            now = time.time()
        pools = {} if self._known is None else self._known[1].pools
        return lambda slot: describe_life(slot, pools.get(slot.pool), now)

    def _follow(self, store: Store) -> float:
        with self._guard:
            version = store.rules_versions()
            if self._known is None or self._known[0] != version:
                self._known = version, store.load_rules().rules
        return store.now()
