"""Asks: what a place has to have for one instance. Which of them a place meets is found by an index on labels, once for
all places that are alike, so that nobody goes through places × reservations.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scheduler.model.labels import Labels, shape_of
from scheduler.model.resources import Resources
from scheduler.policy.capacity.fits import find_obstacle
from scheduler.policy.capacity.requests import Amounts
from scheduler.policy.capacity.slot_info import SlotInfo

_Item = tuple[str, str]


@dataclass(slots=True, eq=False)
class Requirements:
    """Labels, and by pool how much. Compared by identity: there is one for all alike."""

    number: int
    labels: Labels
    steps: Mapping[str, Amounts]

    def is_met(self, pool: str, labels: Labels, room: Resources | None) -> bool:
        """Whether a place of this pool with these labels and so much room will do."""
        step = self.steps.get(pool)
        if step is None or not self.labels.items() <= labels.items():
            return False
        return find_obstacle(step.amounts, room) is None


class RequirementsIndex:
    """All asks of a tick."""

    def __init__(self) -> None:
        self._known: dict[object, Requirements] = {}
        self._by_label: dict[_Item | None, list[Requirements]] = {None: []}
        """Each under the label that fewest others have; those without any under None."""
        self._uses: Counter[_Item] = Counter()
        self._met: dict[object, tuple[Requirements, ...]] = {}

    def find(self, labels: Labels, steps: Mapping[str, Amounts]) -> Requirements:
        """The one for these labels and so much."""
        key = (shape_of(labels), tuple(steps.items()))
        requirements = self._known.get(key)
        if requirements is None:
            requirements = self._known[key] = Requirements(len(self._known), labels, steps)
            self._file(requirements)
        return requirements

    def _file(self, requirements: Requirements) -> None:
        rarest = min(requirements.labels.items(), key=lambda item: (self._uses[item], item), default=None)
        self._by_label.setdefault(rarest, []).append(requirements)
        self._uses.update(requirements.labels.items())
        self._met.clear()

    def list_met(self, slot_info: SlotInfo, room: Resources | None) -> tuple[Requirements, ...]:
        """Those that a place with so much room meets, in a fixed order."""
        key = (slot_info.slot.pool, tuple(slot_info.labels.items()), None if room is None else tuple(room.items()))
        found = self._met.get(key)
        if found is None:
            met = (
                requirements
                for requirements in self._list_filed(slot_info.labels)
                if requirements.is_met(slot_info.slot.pool, slot_info.labels, room)
            )
            found = self._met[key] = tuple(sorted(met, key=lambda requirements: requirements.number))
        return found

    def _list_filed(self, labels: Labels) -> Iterator[Requirements]:
        yield from self._by_label[None]
        for item in labels.items():
            yield from self._by_label.get(item, ())
