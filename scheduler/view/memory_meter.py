"""The port to the metrics implemented in memory, for the simulator and for unit tests."""

from collections import Counter
from collections.abc import Mapping, Sequence

from typing_extensions import override

from scheduler.ports import RefusedMessage
from scheduler.ports.view import MOST_KEPT, MOST_REFUSED, REFUSED_SECONDS, Meter
from scheduler.view.metric_table import REFUSED, find_label_values


class MemoryMeter(Meter):
    """The Meter port in memory: sums of counters by name and labels, and lists of the values observed in histograms."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self.observations: list[tuple[str, dict[str, str], float]] = []
        self.probed: dict[str, float] = {}
        self._refused: list[RefusedMessage] = []
        self._noted: dict[str, tuple[float, int]] = {}

    @override
    def count(self, name: str, labels: Mapping[str, str], amount: float = 1) -> None:
        find_label_values(name, "counter", labels)
        self.counts[name, tuple(sorted(labels.items()))] += amount  # type: ignore[assignment] # it adds floats, too

    @override
    def observe(self, name: str, labels: Mapping[str, str], value: float) -> None:
        self.observe_all(name, labels, [value])

    @override
    def observe_all(self, name: str, labels: Mapping[str, str], values: Sequence[float]) -> None:
        find_label_values(name, "histogram", labels)
        self.observations += [(name, dict(labels), value) for value in values]

    @override
    def note_probes(self, slots: Sequence[str], at: float) -> None:
        """Record `at` as the time at which the machines of these slots answered a probe or EC2 reported them. See
        Meter.
        """
        self.probed.update(dict.fromkeys(slots, at))

    @override
    def note_refused(self, refused: RefusedMessage) -> None:
        self.count(REFUSED, {"queue": refused.queue, "defect": refused.defect})
        begun, noted = self._noted.get(refused.defect, (refused.at, 0))
        if refused.at >= begun + REFUSED_SECONDS:
            begun, noted = refused.at, 0
        self._noted[refused.defect] = (begun, noted + 1)
        if noted < MOST_REFUSED:
            self.put_back_refused([refused])

    @override
    def take_refused(self) -> list[RefusedMessage]:
        taken, self._refused = self._refused, []
        return taken

    @override
    def put_back_refused(self, refused: Sequence[RefusedMessage]) -> None:
        self._refused = [*self._refused, *refused][-MOST_KEPT:]
