"""docs/reference/metrics.md lists every metric with its kind and labels."""

import re
from pathlib import Path
from typing import Final

from scheduler.protocol.clock import ProcessOffset
from scheduler.store.memory import MemoryStore
from scheduler.view.metric_table import METRICS
from scheduler.view.redis_meter import Tally
from workers.metrics import Sources, collect
from workers.queue_watch import WaitingMessages

PAGE: Final = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")


def list_gauges() -> set[tuple[str, str]]:
    store = MemoryStore(lambda: 1.0)
    with store.transaction() as transaction:
        transaction.note_tick(transaction.take_term("me"), 1.0)
    sources = Sources(
        store,
        lambda: Tally({}, {}),
        lambda: {"view_lag": 0.0},
        lambda: {"ticks": WaitingMessages(0, 0.0)},
        lambda: [ProcessOffset("beat", "alpha", 0.0)],
        per_slot=True,
    )
    families = collect(sources)
    return {(family.name, family.type) for family in families if family.type == "gauge"}


def read_table() -> dict[str, tuple[str, tuple[str, ...]]]:
    rows = re.findall(r"^\| `(leasehold_\w+)` \| (\w+) \|([^|]*)\| [^|]+ \|$", PAGE, re.MULTILINE)
    return {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def test_every_counter_and_histogram_is_on_the_page_with_its_labels() -> None:
    """If this fails: add a row to docs/reference/metrics.md."""
    documented = {name: row for name, row in read_table().items() if row[0] != "gauge"}
    assert documented == {name: (metric.kind, metric.labels) for name, metric in METRICS.items()}


def test_every_gauge_is_on_the_page() -> None:
    assert {(name, kind) for name, (kind, _) in read_table().items() if kind == "gauge"} == list_gauges()
