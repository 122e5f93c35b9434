"""The scenarios play as the pages, or the files beside the scenarios, show them."""

from tests.docs.played import ROOT, SCENARIOS, list_shown, play


def test_each_scenario_prints_what_is_recorded() -> None:
    """When this fails: run `python -m tests.docs.played`, and read whether the text around the output is still true."""
    shown = list(list_shown())
    assert [each.output for each in shown] == [play(each.file) for each in shown]


def test_each_scenario_is_recorded_once_and_on_a_page() -> None:
    files = sorted(f"examples/scenarios/{path.name}" for path in SCENARIOS.glob("*.toml"))
    page = (ROOT / "docs" / "explanation" / "scheduling.md").read_text(encoding="utf-8")
    assert files
    assert sorted(each.file for each in list_shown()) == files
    assert [file for file in files if f"leasehold simulate {file}" not in page] == []
