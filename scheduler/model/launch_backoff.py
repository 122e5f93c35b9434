"""Holds: what keeps launches back for a while: refusals of the cloud, boots that failed, machines that no slot
knows. Rows, so that they outlive us.
"""

from typing import Literal

import msgspec

Refusal = Literal["capacity", "quota", "throttled", "misconfigured", "auth"]
Kind = Literal[Refusal, "unhealthy", "strangers"]


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Why and until when `subject` of `pool` is not launched; ends when now >= `until`.

    subject: `capacity` and `misconfigured` name an offering's key, `quota` a market, `throttled` nothing
    ("" = the whole pool; also the offering of a pool that lists none). `auth` holds the pool "*".
    `delay` is the present back-off of `throttled` in seconds; `active` the pool's active slots without the
    refused ones when `quota` was refused: fewer active than that end the hold too (0: only the time counts).

    Two kinds hold by more than their time. `unhealthy`: the pool's last `streak` boots failed, `subject` has the
    reason of the last failure; it holds from `unhealthy_after` on. `strangers`: `active` machines run under the
    pool's tags that no slot knows; they count towards `max_slots`, until `until` unless they are seen again.
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
    """When the refused launch was decided: launches of one tick that are refused alike are one refusal."""
    streak: int = 1
    """Refusals of this kind in a row."""


def hold_id(pool: str, kind: Kind, subject: str = "") -> str:
    """The id under which a hold is kept: one row a pool, kind and subject."""
    return f"{pool}/{kind}/{subject}"
