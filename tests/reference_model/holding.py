"""Quota back-offs, computed from the answers of the cloud so far: nothing of it is read from the engine's rows.

Source: Arvados. A tick gets the whole history, and each tick reads all of it again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

REFUSED = ("capacity", "quota", "throttled", "auth", "misconfigured")


@dataclass(frozen=True)
class Counted:
    """A write: the number of active slots of each pool after it."""

    active: Mapping[str, int]


@dataclass(frozen=True)
class Answered(Counted):
    """The cloud has answered a launch; the slots are counted after that."""

    at: float
    pool: str
    bucket: str
    """What the cloud counts the machine against, see `find_bucket`."""
    result: str
    decided_in: int
    """The number of the tick that decided the launch; 0 for a slot that was given in flight."""
    decided_at: float
    """The time of that tick. Several ticks may have the same time in a play, and count as one tick's refusals then."""
    ticks: int
    """How many ticks were played before the answer."""
    quota_hold: float

    def is_like(self, other: "Answered") -> bool:
        """Whether two answers of a pool are of the same time, with no tick played between them, or answer what one tick
        decided: a start is refused at once, and a launch of the same tick later.
        """
        one_time = (self.at, self.ticks) == (other.at, other.ticks)
        one_tick = self.decided_in and other.decided_in and self.decided_at == other.decided_at
        return self.pool == other.pool and bool(one_time or one_tick)


History = Sequence[Counted]


def find_refusal_for_quota(history: History, pool: str, bucket: str) -> int | None:
    """The index of the last launch of that pool and bucket that was refused for quota; None if none was, or if a launch
    has succeeded since that was decided after the refusal was known: "a launch that was decided before is no probe".

    The bucket "" is that of machines without an offering. Its refusal concerns the whole pool, and any success ends it.
    """
    last: int | None = None
    for index, each in enumerate(history):
        if isinstance(each, Answered) and each.pool == pool:
            if each.result == "quota" and each.bucket == bucket:
                last = index
            elif each.result == "success" and bucket in ("", each.bucket) and last is not None:
                refusal = history[last]
                if isinstance(refusal, Answered) and each.decided_in > refusal.ticks:
                    last = None
    return last


def is_lasting(history: History, index: int, now: float) -> bool:
    """Whether the hold of that refusal lasts: "60 s, or until fewer slots are active than at the refusal, if sooner;
    … with none active only the 60 s count". "Active at the refusal" is the pool's count "without the launches refused
    at that time", whatever they were refused for, and without the others that the same tick decided and EC2 refused.
    """
    refusal = history[index]
    if not isinstance(refusal, Answered) or now >= refusal.at + refusal.quota_hold:
        return False
    least = refusal.active.get(refusal.pool, 0)
    for position in range(index + 1, len(history)):
        active = history[position].active.get(refusal.pool, 0)
        if active < least:
            # A refusal is known after the write that stores it.
            answers = [each for each in history[position : position + 2] if isinstance(each, Answered)]
            if not any(each.result in REFUSED and each.is_like(refusal) for each in answers):
                return False
            least = active
    return True


def count_refusals_for_quota(history: History, pool: str, bucket: str) -> int:
    """How many refusals for quota came in a row there, those of launches that one tick decided counted once."""
    count, last = 0, None
    for index, each in enumerate(history):
        if isinstance(each, Answered) and (each.pool, each.bucket) == (pool, bucket):
            if find_refusal_for_quota(history[: index + 1], pool, bucket) is None:
                count, last = 0, None
            elif each.result == "quota":
                is_same = last is not None and each.decided_at == last.decided_at and bool(last.decided_in)
                count, last = count + (not is_same), each
    return count
