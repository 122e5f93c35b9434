"""The scenarios of the pages play as the pages show them."""

from tests.docs.played import SCENARIOS, list_shown, play


def test_each_scenario_prints_what_its_page_shows() -> None:
    """When this fails: run `python -m tests.docs.played`, and read whether the text around the output is still true."""
    shown = list(list_shown())
    assert [each.output for each in shown] == [play(each.file) for each in shown]


def test_each_scenario_file_is_shown_on_a_page() -> None:
    files = {f"examples/scenarios/{path.name}" for path in SCENARIOS.iterdir()}
    assert files
    assert {each.file for each in list_shown()} == files
