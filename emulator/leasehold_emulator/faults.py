"""Decide which calls the EC2 emulator refuses: by injected faults, and by EC2's throttling with token buckets.

Every call takes a token from the bucket for its kind of call. A launch or a termination also takes a token for each
instance. If one bucket has too few tokens, the call is refused, and no bucket changes. The emulator has one AWS
account.
"""

from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import Final, Literal

from leasehold_emulator.calls import Call, Place
from leasehold_emulator.settings import Bucket, FaultRule, Throttling, Where

READING: Final = ("Describe", "Get", "List", "Search")


Kind = Literal["request", "place", "short", "lost", "machine"]

_KIND_OF_PLACE: Final[Mapping[Where, Kind]] = {"call": "request", "fleet": "place", "machine": "machine"}


class Fault:
    """One injected fault of the EC2 emulator. It has a rule, the number of calls that it will still make fail, and the
    time at which it ends.
    """

    def __init__(self, rule: FaultRule, now: float, seed: str) -> None:
        self.rule = rule
        # Repeatable random numbers are intended; nothing here is secret.
        self._random = Random(seed)  # noqa: S311
        self._left = rule.count
        self._until = None if rule.seconds is None else now + rule.seconds
        self._met: set[str] = set()

    @property
    def kind(self) -> Kind:
        """The effect of the fault: `lost` (the answer is lost), `short` (a launch gets fewer instances), `place` (a
        place, which is an instance type in a zone, fails), `machine` (a launched instance ends by itself), or `request`
        (the whole request fails).
        """
        rule = self.rule
        if rule.lost is not None:
            return "lost"
        if rule.deliver is not None:
            return "short"
        return _KIND_OF_PLACE[rule.place]

    def has_ended(self, now: float) -> bool:
        """Return whether the time of the injected fault is over."""
        return self._until is not None and now >= self._until

    def meets(self, call: Call, place: Place | None, now: float) -> bool:
        """Return whether the injected fault is not used up and applies to this call at this place, which is an instance
        type in a zone. `place` None: the call is no launch, so it has no place.
        """
        if self.has_ended(now) or not (self._left != 0 or call.invocation in self._met):
            return False
        rule = self.rule
        is_for_action = call.is_launch if rule.action is None else rule.action in {call.action, "any"}
        # A call without places can meet only a fault that names neither type, zone nor subnet.
        kind, zone, subnet = (place.type, place.zone, place.subnet) if place else (None, None, None)
        is_there = rule.type in {None, kind} and rule.zone in {None, zone} and rule.subnet in {None, subnet}
        return is_for_action and rule.market in {None, call.market} and is_there

    def is_drawn(self) -> bool:
        """Return whether the injected fault makes a call fail to which it applies. If the rule of the fault has a
        `share`, the result is drawn at random with the share as probability; else it is True.
        """
        return self.rule.share is None or self._random.random() < self.rule.share

    def spend(self, call: Call) -> None:
        """Reduce the remaining count of the injected fault by 1. All of boto3's attempts of one call count once."""
        if call.invocation in self._met:
            return
        if call.invocation:
            self._met.add(call.invocation)
        self.spend_one()

    def spend_one(self) -> None:
        """Reduce the remaining count of the injected fault by 1."""
        if self._left:
            self._left -= 1


class FaultTable:
    """All injected faults of the EC2 emulator, in the order in which they are tried. `now` is a monotonic time in
    seconds.
    """

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self.seed = 0
        """Seed of the random numbers of the faults that are set after this value was set."""

    def replace(self, rules: Iterable[FaultRule], now: float) -> None:
        """Replace all injected faults by faults with these rules. The time of the new faults starts at `now`."""
        self._faults = []
        self.add(rules, now)

    def add(self, rules: Iterable[FaultRule], now: float) -> None:
        """Append injected faults with these rules. The time of the new faults starts at `now`."""
        for rule in rules:
            self._faults.append(Fault(rule, now, f"{self.seed}:{len(self._faults)}"))

    def rules(self, now: float) -> Iterator[FaultRule]:
        """Yield the rules of the injected faults whose time is not over."""
        return (fault.rule for fault in self._faults if not fault.has_ended(now))

    def take(self, kind: Kind, call: Call, now: float) -> FaultRule | None:
        """Return the rule of the first injected fault of this kind that applies to the call, and reduce the remaining
        count of the fault. Return None if no fault applies.

        `request`: the whole request fails. `short`: a launch gets fewer instances. `lost`: the answer is lost.
        """
        places = call.places or (None,)
        for fault in self._faults:
            if fault.kind == kind and any(fault.meets(call, place, now) for place in places) and fault.is_drawn():
                fault.spend(call)
                return fault.rule
        return None

    def take_for_places(self, call: Call, places: Iterable[Place], now: float) -> dict[Place, FaultRule]:
        """Return place -> rule, for each place (instance type and zone) of the launch `call` at which an injected fault
        prevents the launch. If several faults apply to a place, the rule is that of the first of these faults in the
        table.

        The remaining count of each fault whose rule is returned is reduced by 1, even if the rule is returned for
        several places.
        """
        places = list(places)
        drawn = [
            fault
            for fault in reversed(self._faults)
            if fault.kind == "place" and any(fault.meets(call, place, now) for place in places) and fault.is_drawn()
        ]
        met = {place: fault for place in places for fault in drawn if fault.meets(call, place, now)}
        for fault in {id(fault): fault for fault in met.values()}.values():
            fault.spend(call)
        return {place: fault.rule for place, fault in met.items()}

    def take_for_machine(self, call: Call, place: Place, now: float) -> FaultRule | None:
        """Return the rule of the first injected fault that ends an instance which the launch `call` put at this place,
        and reduce the remaining count of the fault. Return None if no fault applies.
        """
        for fault in self._faults:
            if fault.kind == "machine" and fault.meets(call, place, now) and fault.is_drawn():
                fault.spend_one()
                return fault.rule
        return None


class TokenBucket:
    """A token bucket, which limits the rate of calls. It is full at first, holds at most `size` tokens, and gains
    `refill` tokens a second. Times are in seconds.
    """

    def __init__(self, bucket: Bucket, now: float) -> None:
        self.bucket = bucket
        self._tokens, self._at = float(bucket.size), now

    def level(self, now: float) -> float:
        """Return the number of tokens in the bucket at the time `now`. If the clock was set back, the bucket gains no
        tokens.
        """
        gained = max(0.0, now - self._at) * self.bucket.refill
        return min(float(self.bucket.size), self._tokens + gained)

    def take(self, tokens: int, now: float) -> None:
        """Take this number of tokens from the bucket at the time `now`. The caller has checked that the bucket has
        them.
        """
        self._tokens, self._at = self.level(now) - tokens, max(now, self._at)


class Throttle:
    """The token buckets by which the EC2 emulator limits the rate of calls, for each region. Not thread-safe; the
    middleware uses it under its lock.
    """

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str], TokenBucket] = {}

    def admits(self, call: Call, throttling: Throttling | None, now: float) -> bool:
        """Return whether all token buckets of a call have enough tokens. If they have, take the tokens; else take none.
        `throttling`: the sizes of the buckets; None: there are no buckets, and every call is admitted.
        """
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
        """Fill the token buckets of all regions again."""
        self._buckets.clear()

    def _find(self, region: str, name: str, bucket: Bucket, now: float) -> TokenBucket:
        found = self._buckets.get((region, name))
        if found is None or found.bucket != bucket:
            found = self._buckets[region, name] = TokenBucket(bucket, now)
        return found


def find_costs(call: Call) -> Mapping[str, int]:
    """Return the tokens that a call takes from buckets of `Throttling`, as name of the bucket -> number of tokens."""
    if call.is_launch:
        return {"launch": 1, "launched_instances": 0 if call.is_dry_run else call.wanted[1]}
    if call.action == "TerminateInstances":
        return {"terminate": 1, "terminated_instances": 0 if call.is_dry_run else len(call.instances)}
    return {"describe" if call.action.startswith(READING) else "mutate": 1}
