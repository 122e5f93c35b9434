"""Attempts: what is launched for one who waits, and taken back where that does not serve it whole."""

from dataclasses import dataclass, field

from scheduler.policy.capacity.gang import fill, has_room, has_room_for_some
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.launch_limits import LaunchLimits, first_code
from scheduler.policy.scaling.offerings import Choice


@dataclass
class TrialLaunch:
    """The launches for one demand, which are taken back when they cannot serve it whole."""

    cycle: CycleState
    limits: LaunchLimits
    demand: Demand
    there: list[SlotIndex]
    """Where it may find room without a launch, what is kept for it too."""
    launched: list[tuple[str, Choice, SlotInfo]] = field(default_factory=list)
    codes: set[str] = field(default_factory=set)
    """What held back the launch that it lacked."""
    lacks_one: bool = False
    """Whether it lacked one; if not, its instances would be in each other's way on all that was launched."""

    def fill(self) -> list[SlotInfo] | None:
        """A place for each of its instances, what it lacks launched; None where it is to be undone."""
        return fill(self.demand, self._list_rooms(), self._launch)

    def foresee_code(self) -> str:
        """The code with which it would wait if its launches were decided now; "" if they would serve it. None is."""
        is_served = has_room(self.demand, self._list_rooms(), extend=self._launch)
        self.undo()
        return "" if is_served else self.find_code()

    def _list_rooms(self) -> list[SlotIndex]:
        return [*self.there, self.cycle.launched]

    def _launch(self, need: InstanceRequest) -> SlotInfo | None:
        """A new place for one instance in the first pool that can launch something; None notes the codes."""
        codes: set[str] = set()
        for name, choice, code in self.limits.list_choices(self.demand, need):
            if code is None:
                slot_info = self.limits.launch(name, choice, "demand")
                self.launched.append((name, choice, slot_info))
                self.cycle.launched.add(slot_info)
                return slot_info
            codes.add(code)
        self.codes, self.lacks_one = codes, True
        return None

    def undo(self) -> None:
        """Take the launches back, the last one first."""
        for name, _, slot_info in reversed(self.launched):
            self.cycle.launched.remove(slot_info)
            self.limits.undo(name, slot_info)

    def probe(self) -> None:
        """After a quota hold one launch goes alone: a gang that needs more begins with its first one."""
        if self.held != "at_quota" or not self.launched:
            return
        name, choice, _ = self.launched[0]
        if self.limits.may_probe(name, choice.market):
            self.limits.launch(name, choice, "demand").wanted = True

    @property
    def held(self) -> str:
        """What holds back the launch that it lacked; "" if no launch would serve it."""
        return first_code(self.codes)

    def find_code(self) -> str:
        """Why it waits, once all that was taken for it is given back."""
        if not self.held:
            return self._code_without_launch()
        return self.held if self.launched else self.limits.choose_code(self.demand, self.held)

    def _code_without_launch(self) -> str:
        """Why it waits when no launch would serve it."""
        if not self.lacks_one:
            return "gang_incomplete"
        if has_room_for_some(self.demand, self._list_rooms()):
            return "gang_incomplete"
        return "cordoned" if all(map(self.limits.has_cordoned_room, self.demand.needs)) else "no_capacity"
