"""The page on accounts: its example plays as shown, and the settings and metrics that it names exist."""

import re
from io import StringIO
from pathlib import Path

from scheduler.model.rules import AccountRules
from scheduler.simulation.runner import run_file
from scheduler.view.metric_table import METRICS
from workers.gauges import measure_account_waits, measure_accounts

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "accounts.md").read_text(encoding="utf-8")


def find_block(language: str) -> str:
    return PAGE.partition(f"```{language}\n")[2].partition("```")[0]


def test_the_example_plays_as_shown(tmp_path: Path) -> None:
    """When this fails: put the output of `leasehold simulate` under it, and read whether the text is still true."""
    path, out = tmp_path / "saver.json", StringIO()
    path.write_text(find_block("json"), encoding="utf-8")
    run_file(path, json_lines=False, out=out)
    assert out.getvalue() == find_block("text")


def test_every_setting_is_described() -> None:
    reported = set(re.findall(r"^\| `([a-z_]+)` \|", PAGE, re.MULTILINE))
    assert reported >= set(AccountRules.model_fields) - {"description"}


def test_every_metric_of_accounts_is_named() -> None:
    gauges = {family.name for family in [*measure_accounts([], []), measure_account_waits({}, [])]}
    counters = {name for name, metric in METRICS.items() if "account" in metric.labels}
    assert set(re.findall(r"leasehold_\w+", PAGE.partition("## Metrics")[2])) == gauges | counters
