"""Injected faults: which rule applies to a call, and when a rule is used up."""

from collections.abc import Iterable, Iterator
from typing import Final, Literal

from workers.ec2.emulator.calls import Call, Place
from workers.ec2.emulator.settings import FaultRule
from workers.ec2.errors import classify

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
