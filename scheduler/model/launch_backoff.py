"""Launch back-offs ("holds"): rows that stop launches of a pool for some time, because EC2 refused a launch, boots
failed, or machines without a slot were found. They are stored in the database, so that they survive a restart.
"""

from typing import Literal

import msgspec

Refusal = Literal["capacity", "quota", "throttled", "misconfigured", "auth"]
Kind = Literal[Refusal, "unhealthy", "strangers"]


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A launch back-off: the reason why `subject` of `pool` is not launched, and the time `until` which this holds.

    `subject` depends on the kind. For `capacity` and `misconfigured` it is the key of an offering, for `quota` a
    market. For `throttled` it is "", the whole pool; "" also stands for the offering of a pool that lists none. `auth`
    applies to the pool "*", which means all pools. For `throttled`, `delay` is the present back-off in seconds. For
    `quota`, `active` is the number of active slots of the pool, without the refused ones, at the refusal. The back-off
    also ends when fewer slots are active; 0 means that only the time counts.

    Two kinds need more than the time. For `unhealthy`, `streak` is the number of failed boots in a row and `subject`
    the reason of the last one. It applies when `streak` reaches the pool's `unhealthy_after`. For `strangers`, `active`
    is the number of running machines that have the pool's tags and no slot. They count towards `max_slots` until
    `until`, which moves on when they are seen again.
    """

    version: int = 0
    marked_at: float = 0.0
    id: str
    pool: str
    kind: Kind
    subject: str = ""
    refused_at: float
    until: float
    delay: float = 0.0
    active: int = 0
    decided_at: float = 0.0
    """Time at which the refused launch was decided. Equal refusals of launches of one tick count as one refusal."""
    streak: int = 1
    """Number of refusals of launches of this kind in a row."""


def hold_id(pool: str, kind: Kind, subject: str = "") -> str:
    """Return the id of a launch back-off. Each pool, kind and subject has one row."""
    return f"{pool}/{kind}/{subject}"
