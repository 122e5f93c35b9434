"""The join token of a launch: 256 bits that depend on key, cluster and launch, compared in constant time."""

import hmac

import pytest

from scheduler.protocol import join_tokens
from scheduler.protocol.join_tokens import (
    TOKEN_LENGTH,
    TOKEN_PLACE,
    has_form_of_machine,
    has_form_of_token,
    hash_join_token,
    is_join_token,
    make_join_token,
)
from scheduler.protocol.signing import read_key

KEY = b"k" * 32
TOKEN = make_join_token(KEY, "c-1", "l-1")


def test_a_token_is_256_bits_and_the_same_each_time() -> None:
    assert len(read_key(TOKEN)) == 32
    assert make_join_token(KEY, "c-1", "l-1") == TOKEN
    assert has_form_of_token(TOKEN)


def test_another_key_cluster_or_launch_has_another_token() -> None:
    others = {
        make_join_token(b"j" * 32, "c-1", "l-1"),
        make_join_token(KEY, "c-2", "l-1"),
        make_join_token(KEY, "c-1", "l-2"),
        # Fields that are written one after the other would be equal here.
        make_join_token(KEY, "c-1l", "-1"),
    }
    assert len(others | {TOKEN}) == 5
    for other in others:
        assert not is_join_token(KEY, "c-1", "l-1", other)
    assert is_join_token(KEY, "c-1", "l-1", TOKEN)


def test_the_mark_in_a_stored_request_has_the_length_of_a_token_and_is_none() -> None:
    assert len(TOKEN_PLACE) == TOKEN_LENGTH == len(TOKEN)
    assert not has_form_of_token(TOKEN_PLACE)


def test_a_hash_shows_nothing_of_its_token() -> None:
    assert len(hash_join_token(TOKEN)) == 64
    assert hash_join_token(TOKEN) != hash_join_token(TOKEN[::-1])


@pytest.mark.parametrize("wrong", [TOKEN[::-1], "", "é" * TOKEN_LENGTH, "\ud800"])
def test_each_wrong_token_is_compared_in_constant_time(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(wanted: bytes, given: bytes) -> bool:
        compared.append(given)
        return hmac.compare_digest(wanted, given)

    monkeypatch.setattr(join_tokens, "compare_digest", compare)
    assert not is_join_token(KEY, "c-1", "l-1", wrong)
    assert compared == [wrong.encode("utf-8", "surrogatepass")]


@pytest.mark.parametrize("text", [None, 1, b"", TOKEN + "\n", TOKEN[1:], TOKEN + "A", "=" * TOKEN_LENGTH])
def test_another_value_has_not_the_form_of_a_token(text: object) -> None:
    assert not has_form_of_token(text)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("i-0123456789abcdef0", True), ("i-01234567", True), ("i-1", False), ("i-0123456g", False), (None, False)],
)
def test_the_form_of_an_instance_id(text: object, is_one: bool) -> None:
    assert has_form_of_machine(text) == is_one
