"""The language rules of CONTRIBUTING.md hold for every line of code and every page."""

from pathlib import Path

import pytest

from tests.language import ROOT, find_refused, list_files

NOT_YET_PLAIN = Path(__file__).with_name("not_yet_plain.txt")
"""Files that contain refused constructions from before the rule, one a line. Files only leave this list."""


def test_every_file_that_is_not_listed_is_free_of_refused_constructions() -> None:
    listed = set(NOT_YET_PLAIN.read_text(encoding="utf-8").split())
    found = {name: find_refused(name, (ROOT / name).read_text(encoding="utf-8")) for name in list_files()}
    assert [str(each) for name in found if name not in listed for each in found[name]] == []


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.py", '"""Those who wait."""', ["Those who"]),
        ("a.py", "x = 1  # nobody reads it", ["nobody"]),
        ("a.py", "raise ValueError('it was told so')", ["told"]),
        ("a.py", "def test_somebody_waits(): pass", ["somebody"]),
        ("a.py", "def somebody(who): return 'told'", []),
        ("a.py", '"""Users who ask."""', []),
        ("a.md", "It says so.\n```\nit says so\n```\n`says`", ["says"]),
    ],
)
def test_refused_constructions_are_found_in_text_and_not_in_code(name: str, text: str, words: list[str]) -> None:
    assert [each.words for each in find_refused(name, text)] == words
