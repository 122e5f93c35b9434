"""Launch back-offs, called holds in the database: rows that pause launches of a pool for some time.

A pause begins because EC2 refused a launch, boots failed, or machines without a slot were found. The rows are stored in
the database, so that a pause survives a restart.
"""

from typing import Final, Literal

import msgspec

Refusal = Literal["capacity", "quota", "throttled", "misconfigured", "auth"]
Kind = Literal[Refusal, "unhealthy", "strangers"]


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A launch back-off: a row that pauses launches of `subject` in `pool` until the time `until`. `kind` is the
    reason.

    The meaning of `subject` depends on the kind. `capacity`, `misconfigured`: the key of an offering ("" in a pool
    that lists none), `KEY@PLACE` for the offering in one subnet or zone, or `@PLACE` for all offerings there. `quota`:
    `MARKET:CLASS` (`model.quota_classes`), "" for the whole pool, or `MARKET` as earlier versions wrote it.
    `throttled`: "" (the whole pool is paused), and `delay` is the length of the pause in seconds. `auth`: the key of an
    offering or "" for the pool; with the pool "*" a market of the account or "" (all pools are paused).

    For `quota`, `active` is the number of active slots that the pool had when EC2 refused the launch, without the slots
    of refused launches. The pause ends at `until`, or earlier if fewer than `active` slots are active. If `active` is
    0, the pause ends only at `until`.

    Two kinds depend on more than the time. `unhealthy`: `streak` is the number of failed boots in a row, and `subject`
    describes the last one; launches pause when `streak` reaches the pool's `unhealthy_after`. `strangers`: `active` is
    the number of running machines with the pool's tags that have no slot. They count towards `max_slots` until `until`,
    which moves on when they are seen again.
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
    """Time of the tick that decided the refused launch. Equal refusals of launches of one tick count as one refusal."""
    streak: int = 1
    """Number of refusals or failed boots in a row."""
    code: str = ""
    message: str = ""
    """`code`: the cloud's code of the last refusal. `message`: its sentence, bounded. "": not known."""
    at_boot: bool = False
    """Whether the refusal came as the reason for which a machine ended. Then the launch of a machine does not show that
    the reason is over; a machine that becomes ready does.
    """

    @property
    def words(self) -> str | None:
        """What the cloud answered, as `CODE: message`; None if nothing is known but the kind."""
        return describe_error(self.code, self.message) if self.code not in {"", self.kind} else None


LONGEST_PAUSE: Final = 900.0
"""The longest pause, in seconds, to which refusals in a row lengthen a back-off."""


def find_pause(seconds: float, streak: int) -> float:
    """Return the length of a pause that grows: `seconds` after the first and the second refusal in a row, then twice as
    long each time, up to `LONGEST_PAUSE` (or `seconds`, if that is longer).
    """
    return min(max(seconds, LONGEST_PAUSE), seconds * 2.0 ** min(60, max(0, streak - 2)))


def describe_error(code: str, message: str) -> str:
    return f"{code}: {message}" if message else code


def hold_id(pool: str, kind: Kind, subject: str = "") -> str:
    """Return the id of a launch back-off. There is one row for each pool, kind and subject. `subject`: what EC2
    refused, see `Hold`; "": the whole pool.
    """
    return f"{pool}/{kind}/{subject}"


def is_trial(hold: Hold, decided_at: float) -> bool:
    """Return whether a back-off was over when a launch was decided. Such a launch tests whether EC2 accepts launches
    again, so only its success shows that EC2 does.
    """
    return hold.until <= decided_at
