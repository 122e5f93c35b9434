"""EC2's throttling: token buckets for kinds of calls, and for the instances in calls.

Every call takes a token of its kind's bucket; a launch or a termination also takes one for each instance. If one
bucket has too few tokens, the call is refused and no bucket changes. The emulator has one account.
"""

from collections.abc import Mapping
from typing import Final

from workers.ec2.emulator.calls import Call
from workers.ec2.emulator.settings import Bucket, Throttling

READING: Final = ("Describe", "Get", "List", "Search")


class TokenBucket:
    """Holds at most `size` tokens, is full at first, and gains `refill` tokens a second. Times are in seconds."""

    def __init__(self, bucket: Bucket, now: float) -> None:
        self.bucket = bucket
        self._tokens, self._at = float(bucket.size), now

    def level(self, now: float) -> float:
        """Return the tokens in it now. A clock that was set back adds none."""
        gained = max(0.0, now - self._at) * self.bucket.refill
        return min(float(self.bucket.size), self._tokens + gained)

    def take(self, tokens: int, now: float) -> None:
        """Take this number of tokens."""
        self._tokens, self._at = self.level(now) - tokens, max(now, self._at)


class Throttle:
    """The buckets of all regions. Not thread-safe; the middleware uses it under its lock."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def admits(self, call: Call, throttling: Throttling | None, now: float) -> bool:
        """Return whether every bucket has enough tokens for the call; if so, take them."""
        if throttling is None:
            return True
        taken = [
            (self._find(call.region, name, getattr(throttling, name), now), tokens)
            for name, tokens in find_costs(call).items()
        ]
        if any(bucket.level(now) < tokens for bucket, tokens in taken):
            return False
        for bucket, tokens in taken:
            bucket.take(tokens, now)
        return True

    def clear(self) -> None:
        """Fill all buckets."""
        self._buckets.clear()

    def _find(self, region: str, name: str, bucket: Bucket, now: float) -> TokenBucket:
        found = self._buckets.get((region, name))
        if found is None or found.bucket != bucket:
            found = self._buckets[region, name] = TokenBucket(bucket, now)
        return found


def find_costs(call: Call) -> Mapping[str, int]:
    """Return the tokens that a call takes from each bucket of `Throttling`."""
    if call.is_launch:
        return {"launch": 1, "launched_instances": 0 if call.is_dry_run else call.wanted[1]}
    if call.action == "TerminateInstances":
        return {"terminate": 1, "terminated_instances": 0 if call.is_dry_run else len(call.instances)}
    return {"describe" if call.action.startswith(READING) else "mutate": 1}
