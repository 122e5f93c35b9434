"""TOML that people write is read in a bounded time."""

import pytest

from scheduler.model.input_texts import MOST_PARTS, parse_toml

LONG = ".".join(["a"] * 60_000)
TEXTS = [
    f"{LONG} = 1",
    f"[{LONG}]",
    f"[[{LONG}]]",
    f"x = {{{LONG} = 1}}",
    " . ".join(['"a"'] * (MOST_PARTS + 1)) + " = 1",
    ".".join(["'a'"] * (MOST_PARTS + 1)) + " = 1",
    f's = """a""""\n{LONG} = 1',  # the fourth quotation mark belongs to the text
    f"s = '''a'''''\n{LONG} = 1",
    f's = "\\""\n{LONG} = 1',
    f"# a ' and a \" in a comment\n{LONG} = 1",
    "x = " + "[" * 100_000,
    "x = " + "1" * 100_000,
    '\\"""' * 50_000 + "\\",
]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_text_that_would_keep_the_parser_busy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"parts|deeply|digits|Expected|Invalid"):
        parse_toml(text)


def test_dots_in_texts_and_comments_divide_no_key() -> None:
    dots = ".".join(["a"] * 1000)
    text = f'a = "{dots}" # {dots}\nb = \'{dots}\'\nc = """\n{dots}\n"""\nd.e."{dots}" = 1.5\n'
    assert parse_toml(text) == {"a": dots, "b": dots, "c": f"{dots}\n", "d": {"e": {dots: 1.5}}}


def test_a_key_may_have_as_many_parts_as_the_rules_need() -> None:
    found: object = parse_toml(".".join(["a"] * MOST_PARTS) + " = 1")
    for _ in range(MOST_PARTS):
        assert isinstance(found, dict)
        found = found["a"]
    assert found == 1
