"""The requirements of one instance, and an index on labels that finds the requirements that a slot meets.

The answer is worked out once for all slots that are alike, so that the cost does not grow with slots × reservations.
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
    """Labels, and amounts by pool. Compared by identity: equal requirements share one object."""

    number: int
    labels: Labels
    steps: Mapping[str, Amounts]

    def is_met(self, pool: str, labels: Labels, free: Resources | None) -> bool:
        """Return whether a slot of this pool has the labels and these free amounts suffice; leases are not counted."""
        step = self.steps.get(pool)
        if step is None or not self.labels.items() <= labels.items():
            return False
        return find_obstacle(step.amounts, free) is None


class RequirementsIndex:
    """All requirements of a cycle."""

    def __init__(self) -> None:
        self._known: dict[object, Requirements] = {}
        self._by_label: dict[_Item | None, list[Requirements]] = {None: []}
        """Each under its label that fewest others require; requirements without labels under None."""
        self._uses: Counter[_Item] = Counter()
        self._met: dict[object, tuple[Requirements, ...]] = {}

    def find(self, labels: Labels, steps: Mapping[str, Amounts]) -> Requirements:
        """Return the shared object for these labels and amounts."""
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

    def list_met(self, slot_info: SlotInfo, free: Resources | None) -> tuple[Requirements, ...]:
        """Return the requirements that a slot with these free amounts meets, in a fixed order."""
        key = (slot_info.slot.pool, tuple(slot_info.labels.items()), None if free is None else tuple(free.items()))
        found = self._met.get(key)
        if found is None:
            met = (
                requirements
                for requirements in self._list_filed(slot_info.labels)
                if requirements.is_met(slot_info.slot.pool, slot_info.labels, free)
            )
            found = self._met[key] = tuple(sorted(met, key=lambda requirements: requirements.number))
        return found

    def _list_filed(self, labels: Labels) -> Iterator[Requirements]:
        yield from self._by_label[None]
        for item in labels.items():
            yield from self._by_label.get(item, ())
