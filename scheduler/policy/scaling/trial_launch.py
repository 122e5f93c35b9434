"""Trial launches: launches for one demand that are undone if they cannot serve it whole."""

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
    """The launches for one demand. The caller undoes them if `fill` returns None."""

    cycle: CycleState
    limits: LaunchLimits
    demand: Demand
    there: list[SlotIndex]
    """Where its instances may go without a launch, including slots that are kept for it."""
    launched: list[tuple[str, Choice, SlotInfo]] = field(default_factory=list)
    codes: set[str] = field(default_factory=set)
    """The codes of what held back the launch that it lacked."""
    lacks_one: bool = False
    """Whether it lacked a launch. If not, its instances exclude each other on what there is."""

    def fill(self) -> list[SlotInfo] | None:
        """Launch what it lacks, and return a slot for each instance; None if that fails: undo the launches then."""
        return fill(self.demand, self._list_indexes(), self._launch)

    def foresee_code(self) -> str:
        """Return the code with which it would wait if its launches were decided now; "" if they would serve it. Undo
        all of them.
        """
        is_served = has_room(self.demand, self._list_indexes(), extend=self._launch)
        self.undo()
        return "" if is_served else self.find_code()

    def _list_indexes(self) -> list[SlotIndex]:
        return [*self.there, self.cycle.launched]

    def _launch(self, need: InstanceRequest) -> SlotInfo | None:
        """Launch a slot for one instance in the first pool that can, and return it; None keeps the codes."""
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
        """Take the launches back, last one first."""
        for name, _, slot_info in reversed(self.launched):
            self.cycle.launched.remove(slot_info)
            self.limits.undo(name, slot_info)

    def probe(self) -> None:
        """Launch one slot alone as a test after a quota back-off: a gang that needs several begins with the first."""
        if self.held != "at_quota" or not self.launched:
            return
        name, choice, _ = self.launched[0]
        if self.limits.may_probe(name, choice.market):
            self.limits.launch(name, choice, "demand").wanted = True

    @property
    def held(self) -> str:
        """The code of what holds back the launch that it lacked; "" if no launch would serve it."""
        return first_code(self.codes)

    def find_code(self) -> str:
        """Return the code with which it waits. Call it after `undo`."""
        if not self.held:
            return self._code_without_launch()
        return self.held if self.launched else self.limits.choose_code(self.demand, self.held)

    def _code_without_launch(self) -> str:
        """Return the code with which it waits if no launch would serve it."""
        if not self.lacks_one:
            return "gang_incomplete"
        if has_room_for_some(self.demand, self._list_indexes()):
            return "gang_incomplete"
        return "cordoned" if all(map(self.limits.has_cordoned_room, self.demand.needs)) else "no_capacity"
