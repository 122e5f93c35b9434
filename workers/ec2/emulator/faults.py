"""Refused calls: injected faults, and EC2's throttling by token buckets.

Every call takes a token of its kind's bucket; a launch or a termination also takes one for each instance. If one
bucket has too few tokens, the call is refused and no bucket changes. The emulator has one account.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Literal

from workers.ec2.emulator.calls import Call, Place
from workers.ec2.emulator.settings import Bucket, FaultRule, Throttling
from workers.ec2.errors import classify

READING: Final = ("Describe", "Get", "List", "Search")
ABOUT_PLACES: Final = frozenset({"capacity", "quota"})


Kind = Literal["request", "place", "short", "lost"]


class Fault:
    """A fault rule with its remaining count and time."""

    def __init__(self, rule: FaultRule, now: float) -> None:
        self.rule = rule
        self._left = rule.count
        self._until = None if rule.seconds is None else now + rule.seconds
        self._met: set[str] = set()

    @property
    def kind(self) -> Kind:
        """What the fault does: lose an answer, deliver fewer instances, or fail a place of a launch or the request."""
        rule = self.rule
        if rule.lost is not None:
            return "lost"
        if rule.deliver is not None:
            return "short"
        return "place" if classify(str(rule.code), rule.http_status) in ABOUT_PLACES else "request"

    def has_ended(self, now: float) -> bool:
        """Return whether its time is over."""
        return self._until is not None and now >= self._until

    def meets(self, call: Call, place: Place | None, now: float) -> bool:
        """Return whether it applies to this call (at this place) and is not used up."""
        if self.has_ended(now) or not (self._left != 0 or call.invocation in self._met):
            return False
        rule = self.rule
        is_for_action = call.is_launch if rule.action is None else rule.action in {call.action, "any"}
        # A call without places meets only the faults that name none.
        kind, zone = (place.type, place.zone) if place else (None, None)
        is_there = rule.type in {None, kind} and rule.zone in {None, zone}
        return is_for_action and rule.market in {None, call.market} and is_there

    def spend(self, call: Call) -> None:
        """Reduce its count, once for all attempts of one call."""
        if call.invocation in self._met:
            return
        if call.invocation:
            self._met.add(call.invocation)
        if self._left:
            self._left -= 1


class FaultTable:
    """The faults in force, in their order. `now` is a monotonic time in seconds."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def replace(self, rules: Iterable[FaultRule], now: float) -> None:
        """Replace all faults by these rules."""
        self._faults = [Fault(rule, now) for rule in rules]

    def add(self, rules: Iterable[FaultRule], now: float) -> None:
        """Add these rules."""
        self._faults += [Fault(rule, now) for rule in rules]

    def rules(self, now: float) -> Iterator[FaultRule]:
        """Return the rules whose time is not over."""
        return (fault.rule for fault in self._faults if not fault.has_ended(now))

    def take(self, kind: Kind, call: Call, now: float) -> FaultRule | None:
        """Return the first fault of this kind that meets the call, and reduce its count.

        `request`: it fails the whole request. `short`: a launch gets fewer instances. `lost`: the answer is lost.
        """
        places = call.places or (None,)
        for fault in self._faults:
            if fault.kind == kind and any(fault.meets(call, place, now) for place in places):
                fault.spend(call)
                return fault.rule
        return None

    def take_for_places(self, call: Call, places: Iterable[Place], now: float) -> dict[Place, FaultRule]:
        """Return the first fault for each place of a launch; the count of each fault is reduced once."""
        met = {
            place: fault
            for place in places
            for fault in reversed(self._faults)
            if fault.kind == "place" and fault.meets(call, place, now)
        }
        for fault in {id(fault): fault for fault in met.values()}.values():
            fault.spend(call)
        return {place: fault.rule for place, fault in met.items()}


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
