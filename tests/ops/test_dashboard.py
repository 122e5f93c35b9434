"""The Grafana dashboard uses existing metrics, and all of them."""

import json
import re
from pathlib import Path
from typing import Any, Final

from tests.ops.test_metrics_page import read_table

FILE: Final = Path(__file__).parents[2] / "compose" / "grafana" / "leasehold.json"
DASHBOARD: Final[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
ROWS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] == "row"]
PANELS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def list_queries() -> list[str]:
    queries = [target["expr"] for panel in PANELS for target in panel["targets"]]
    return queries + [each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]


def find_metric(name: str) -> str | None:
    """Return the metric of the page for the name of a series; a histogram has several series."""
    table = read_table()
    base = re.sub(r"_(bucket|count|sum)$", "", name)
    if name in table:
        return name if table[name][0] != "histogram" else None
    return base if base in table and table[base][0] == "histogram" else None


def test_every_query_names_metrics_and_labels_of_the_page() -> None:
    table = read_table()
    for query in list_queries():
        names = re.findall(r"leasehold_\w+", query)
        assert names, query
        for name in names:
            assert find_metric(name), f"{name} in {query}"
        labels = {label for name in names for label in table[find_metric(name) or ""][1]} | {"le"}
        used = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(", ")}
        used |= set(re.findall(r"[{,](\w+)=~?\"", query))
        assert used <= labels, query
        assert query.count("(") == query.count(")")


def test_every_legend_uses_labels_that_its_query_keeps() -> None:
    table = read_table()
    for panel in PANELS:
        for target in panel["targets"]:
            kept = {label for group in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in group.split(", ")}
            names = re.findall(r"leasehold_\w+", target["expr"])
            labels = kept or {label for name in names for label in table[find_metric(name) or ""][1]}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels, target


def test_every_metric_of_the_page_is_on_the_dashboard() -> None:
    shown = {find_metric(name) for query in list_queries() for name in re.findall(r"leasehold_\w+", query)}
    # Those of each slot exist only with a setting.
    assert set(read_table()) - shown == {"leasehold_slot_resources_used", "leasehold_slot_resources_available"}


def test_every_panel_has_a_title_a_unit_a_description_and_a_place_of_its_own() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(row["title"] for row in ROWS)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    for panel in PANELS:
        assert panel["title"]
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
