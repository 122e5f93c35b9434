"""The language rules of CONTRIBUTING.md hold for every line of code and every page."""

import pytest

from tests.language import find_all, find_refused, list_files


def test_no_file_contains_refused_constructions() -> None:
    assert len(list_files()) > 100
    assert [str(each) for each in find_all([])] == []


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.py", '"""Those who wait."""', ["Those who"]),
        ("a.py", "x = 1  # nobody reads it", ["nobody"]),
        ("a.py", "raise ValueError('it was told so')", ["told"]),
        ("a.py", "def test_somebody_waits(): pass", ["somebody"]),
        ("a.py", "def find(who): told = say(who)", ["who", "told"]),
        ("a.py", "def find(name): return name.tell() + 'told'", []),
        ("a.py", '"""Users who ask."""', []),
        ("a.md", "It says so.\n```\nit says so\n```\n`says`", ["says"]),
    ],
)
def test_refused_constructions_are_found_in_text_and_in_names_that_code_defines(
    name: str, text: str, words: list[str]
) -> None:
    assert [each.words for each in find_refused(name, text)] == words
