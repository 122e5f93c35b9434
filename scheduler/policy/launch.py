"""Step 6, launch: machines for those for whom nothing is ready or on its way.

Sources: the autoscaler's tick (what is in flight counts first), Arvados (choice of the offering, holds).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.model.reservations import Component, Shape
from scheduler.policy.draft import Draft
from scheduler.policy.limits import Limits, first_code, has_cordoned_room
from scheduler.policy.offerings import Choice
from scheduler.policy.order import find_rank
from scheduler.policy.place import wait_for
from scheduler.policy.places import Place
from scheduler.policy.rooms import Demand, fill


def launch(draft: Draft, unplaced: Sequence[Demand], limits: Limits) -> None:
    """In queue order: room on slots launched before it in this tick, else launches for all that it lacks.

    n reservations for which p places are on their way ask for ceil((n - p) / places of a slot) launches.
    What cannot be launched whole launches nothing and waits with the code of what holds it back.
    """
    rank = find_rank(draft)
    refused: dict[Shape, tuple[str, int]] = {}
    for demand in sorted(unplaced, key=lambda each: rank(each.reservation)):
        code, launches = refused.get(demand.shape, ("", -1))
        if launches != limits.launches or not demand.is_plain:
            code = _launch_for(draft, demand, limits)
        if code:
            if demand.is_plain:
                refused[demand.shape] = code, limits.launches
            draft.wait(demand.reservation, code, limits.describe(code, demand.pools))
        if code in {"at_max_slots", "at_quota"}:
            draft.withheld.append(demand)


def _launch_for(draft: Draft, demand: Demand, limits: Limits) -> str:
    """Give it room on what this tick launches; "" or, with nothing launched, the code of what holds it back."""
    opening = _Opening(draft, limits, demand)
    places = fill(demand, [draft.ready, draft.coming, draft.launched], opening.launch)
    if places is None:
        opening.undo()
        opening.probe()
        return opening.find_code()
    wait_for(draft, demand, places)
    return ""


@dataclass
class _Opening:
    """The launches for one demand, which are taken back when they cannot serve it whole."""

    draft: Draft
    limits: Limits
    demand: Demand
    launched: list[tuple[str, Choice, Place]] = field(default_factory=list)
    codes: set[str] = field(default_factory=set)
    """What held back the launch that it lacked."""

    def launch(self, component: Component) -> Place | None:
        """A new place for one instance in the first pool that can launch something; None notes the codes."""
        codes: set[str] = set()
        for name, choice, code in self.limits.list_choices(self.demand, component):
            if code is None:
                place = self.limits.launch(name, choice, "demand")
                self.launched.append((name, choice, place))
                self.draft.launched.add(place)
                return place
            codes.add(code)
        self.codes = codes
        return None

    def undo(self) -> None:
        """Take the launches back, the last one first."""
        for name, _, place in reversed(self.launched):
            self.draft.launched.remove(place)
            self.limits.undo(name, place)

    def probe(self) -> None:
        """After a quota hold one launch goes alone: a gang that needs more begins with its first one."""
        if first_code(self.codes) != "at_quota" or not self.launched:
            return
        name, choice, _ = self.launched[0]
        if self.limits.may_probe(name, choice.market):
            self.limits.launch(name, choice, "demand").wanted = True

    def find_code(self) -> str:
        """Why it waits, once all that was taken for it is given back."""
        return first_code(self.codes) or self._code_without_launch()

    def _code_without_launch(self) -> str:
        """Why it waits when no launch would serve it."""
        components = [instance.component for instance in self.demand.instances]
        if any(self._has_room(each) for each in components):
            return "gang_incomplete"
        cordoned = all(has_cordoned_room(self.draft, self.demand, each) for each in components)
        return "cordoned" if cordoned else "no_capacity"

    def _has_room(self, component: Component) -> bool:
        rooms = (self.draft.ready, self.draft.coming)
        return any(each.find(self.demand, component) for each in rooms)
