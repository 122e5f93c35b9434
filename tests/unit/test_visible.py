"""Control characters in texts of users are shown, whatever the text is."""

import json
import tomllib
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.protocol.visible import escape_json, make_visible

DIRECTIONS = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "PDI", "FSI"}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
WITH_CONTROLS = st.text(st.sampled_from('a\x00\t\n\x1b\x07\x7f\x9b\x9d\u061c\u200f\u202e\u2066\u2028\ufeff\\"é'))


def is_control(char: str) -> bool:
    is_mark_of_direction = unicodedata.bidirectional(char) in DIRECTIONS
    return unicodedata.category(char) in {"Cc", "Zl", "Zp", "Cs"} or is_mark_of_direction


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("naïve 東京 👍🏽", "naïve 東京 👍🏽"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\x9b2J", r"\x9b2J"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("admin\u202etxt.exe", r"admin\u202etxt.exe"),
        ("two\nlines\tand a tab", r"two\nlines\tand a tab"),
        ("half \ud800", r"half \ud800"),
    ],
)
def test_control_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert make_visible(text) == shown


def test_lines_stay_lines_where_there_may_be_several() -> None:
    assert make_visible("one\r\ntwo\tthree\x1b", multiline=True) == "one\\r\ntwo\tthree\\x1b"


@given(text=st.one_of(st.text(), WITH_CONTROLS))
def test_nothing_that_is_shown_controls_a_terminal(text: str) -> None:
    assert not any(map(is_control, make_visible(text)))
    assert not any(char not in "\n\t" and is_control(char) for char in make_visible(text, multiline=True))


@given(text=st.one_of(TEXTS, WITH_CONTROLS))
def test_a_json_document_means_the_same_and_has_no_control_characters(text: str) -> None:
    document = escape_json(json.dumps({"text": text}, ensure_ascii=False))
    assert json.loads(document) == {"text": text}
    assert not any(map(is_control, document))


@given(text=st.one_of(TEXTS, WITH_CONTROLS))
def test_a_toml_document_means_the_same(text: str) -> None:
    assert tomllib.loads(escape_json(f"text = {json.dumps(text, ensure_ascii=False)}")) == {"text": text}
