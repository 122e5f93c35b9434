"""Asks: what a place has to have for one instance. Which of them a place meets is found by an index on labels, once for
all places that are alike, so that nobody goes through places × reservations.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from scheduler.model.labels import Labels, shape_of
from scheduler.model.resources import Resources, fits
from scheduler.policy.needs import Step
from scheduler.policy.places import Place

_Item = tuple[str, str]


@dataclass(slots=True, eq=False)
class Ask:
    """Labels, and by pool how much. Compared by identity: there is one for all alike."""

    number: int
    labels: Labels
    steps: Mapping[str, Step]

    def is_met(self, pool: str, labels: Labels, room: Resources | None) -> bool:
        """Whether a place of this pool with these labels and so much room will do."""
        step = self.steps.get(pool)
        if step is None or not self.labels.items() <= labels.items():
            return False
        return room is None or fits(step.amounts, room)


class Asks:
    """All asks of a tick."""

    def __init__(self) -> None:
        self._known: dict[object, Ask] = {}
        self._by_label: dict[_Item | None, list[Ask]] = {None: []}
        """Each under the label that fewest others have; those without any under None."""
        self._uses: Counter[_Item] = Counter()
        self._met: dict[object, tuple[Ask, ...]] = {}

    def find(self, labels: Labels, steps: Mapping[str, Step]) -> Ask:
        """The one for these labels and so much."""
        key = (shape_of(labels), tuple(steps.items()))
        ask = self._known.get(key)
        if ask is None:
            ask = self._known[key] = Ask(len(self._known), labels, steps)
            self._file(ask)
        return ask

    def _file(self, ask: Ask) -> None:
        rarest = min(ask.labels.items(), key=lambda item: (self._uses[item], item), default=None)
        self._by_label.setdefault(rarest, []).append(ask)
        self._uses.update(ask.labels.items())
        self._met.clear()

    def list_met(self, place: Place, room: Resources | None) -> tuple[Ask, ...]:
        """Those that a place with so much room meets, in a fixed order."""
        key = (place.slot.pool, tuple(place.labels.items()), None if room is None else tuple(room.items()))
        found = self._met.get(key)
        if found is None:
            met = (ask for ask in self._list_filed(place.labels) if ask.is_met(place.slot.pool, place.labels, room))
            found = self._met[key] = tuple(sorted(met, key=lambda ask: ask.number))
        return found

    def _list_filed(self, labels: Labels) -> Iterator[Ask]:
        yield from self._by_label[None]
        for item in labels.items():
            yield from self._by_label.get(item, ())
