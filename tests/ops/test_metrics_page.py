"""docs/how-to/operations.md lists every metric that there is, with its kind and its labels."""

import re
from pathlib import Path
from typing import Final

from leasehold.common.clock import ProcessOffset
from scheduler.store.memory import MemoryStore
from scheduler.view.metric_table import METRICS
from scheduler.view.redis_meter import Tally
from workers.metrics import collect
from workers.queue_watch import WaitingMessages

PAGE: Final = (Path(__file__).parents[2] / "docs" / "how-to" / "operations.md").read_text(encoding="utf-8")


class NothingCounted:
    """A meter of a stack that has ticked once."""

    def read(self) -> Tally:
        return Tally({}, {})

    def read_report(self) -> dict[str, float]:
        return {"view_lag": 0.0}


class EmptyQueues:
    """A broker with nothing to do."""

    def read(self) -> dict[str, WaitingMessages]:
        return {"ticks": WaitingMessages(0, 0.0)}


class RightClocks:
    """Hosts whose clocks are right."""

    def read(self) -> list[ProcessOffset]:
        return [ProcessOffset("beat", "alpha", 0.0)]


def list_gauges() -> set[tuple[str, str]]:
    store = MemoryStore(lambda: 1.0)
    with store.transaction() as transaction:
        transaction.note_tick(transaction.take_term("me"), 1.0)
    families = collect(store, NothingCounted(), NothingCounted(), EmptyQueues(), RightClocks())
    return {(family.name, family.type) for family in families if family.type == "gauge"}


def read_table() -> dict[str, tuple[str, tuple[str, ...]]]:
    section = PAGE.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(leasehold_\w+)` \| (\w+) \|([^|]*)\| [^|]+ \|$", section, re.MULTILINE)
    return {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def test_every_counter_and_histogram_is_on_the_page_with_its_labels() -> None:
    """When this fails: add a row to "Metrics" in docs/how-to/operations.md."""
    documented = {name: row for name, row in read_table().items() if row[0] != "gauge"}
    assert documented == {name: (metric.kind, metric.labels) for name, metric in METRICS.items()}


def test_every_gauge_is_on_the_page() -> None:
    assert {(name, kind) for name, (kind, _) in read_table().items() if kind == "gauge"} == list_gauges()
