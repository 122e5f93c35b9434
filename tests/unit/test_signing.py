"""Signatures: no two messages have the same canonical bytes, and a signature proves one message of one principal."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduler.protocol.signing import (
    RUN_VERSION,
    VERSION,
    RunFields,
    SignedFields,
    encode_canonically,
    format_key_line,
    hash_body,
    is_run_signed_by,
    is_signed_by,
    make_key,
    read_key,
    read_key_line,
    sign,
    sign_headers,
    sign_run,
)
from tests.generated import TIMES

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=12)
"""Digits, colons and commas are frequent, since the canonical form uses them; lone surrogates too."""
TEXTS = st.one_of(ANY_TEXT, st.text(st.sampled_from("012:,a"), max_size=8))
TUPLES = st.lists(TEXTS, max_size=9).map(tuple)
FIELDS = st.builds(SignedFields, *[TEXTS] * 7)
RUNS = st.builds(RunFields, *[TEXTS] * 10)
KEYS = st.binary(min_size=32, max_size=32)
SOME = settings(max_examples=40 * TIMES)


@SOME
@given(one=TUPLES, other=TUPLES)
def test_no_two_different_tuples_have_the_same_canonical_bytes(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert (encode_canonically(*one) == encode_canonically(*other)) is (one == other)


@SOME
@given(fields=TUPLES, cuts=st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_the_same_characters_split_differently_have_other_canonical_bytes(
    fields: tuple[str, ...], cuts: list[int]
) -> None:
    """Plain concatenation would confuse them."""
    text = "".join(fields)
    places = sorted({min(cut, len(text)) for cut in cuts})
    other = tuple(text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True))
    assert (encode_canonically(*fields) == encode_canonically(*other)) is (fields == other)


@SOME
@given(fields=FIELDS, key=KEYS)
def test_a_signature_is_valid_for_its_own_fields_and_key(fields: SignedFields, key: bytes) -> None:
    assert is_signed_by(key, fields, sign(key, fields))


@SOME
@given(fields=FIELDS, key=KEYS, place=st.integers(0, 6), text=TEXTS)
def test_a_changed_field_is_refused(fields: SignedFields, key: bytes, place: int, text: str) -> None:
    assume(fields[place] != text)
    changed = SignedFields._make([*fields[:place], text, *fields[place + 1 :]])
    assert not is_signed_by(key, changed, sign(key, fields))


@SOME
@given(fields=FIELDS, key=KEYS, places=st.permutations(range(7)))
def test_exchanged_fields_are_refused(fields: SignedFields, key: bytes, places: list[int]) -> None:
    changed = SignedFields(*(fields[place] for place in places))
    assert is_signed_by(key, changed, sign(key, fields)) is (changed == fields)


@SOME
@given(body=st.binary(min_size=1, max_size=200), place=st.integers(0, 199), bit=st.integers(0, 7), key=KEYS)
def test_a_changed_bit_of_the_body_is_refused(body: bytes, place: int, bit: int, key: bytes) -> None:
    fields = SignedFields("alice", "c1", "reservations", "submit", "m1", "1.0", hash_body(body))
    changed = bytearray(body)
    changed[place % len(body)] ^= 1 << bit
    assert not is_signed_by(key, fields._replace(body_sha256=hash_body(bytes(changed))), sign(key, fields))


@SOME
@given(fields=FIELDS, key=KEYS, other=KEYS)
def test_another_key_is_refused(fields: SignedFields, key: bytes, other: bytes) -> None:
    assume(key != other)
    assert not is_signed_by(other, fields, sign(key, fields))


@SOME
@given(fields=FIELDS, key=KEYS, signature=TEXTS, place=st.integers(0, 63), digit=st.sampled_from("0123456789abcdefA"))
def test_another_signature_is_refused(fields: SignedFields, key: bytes, signature: str, place: int, digit: str) -> None:
    right = sign(key, fields)
    changed = right[:place] + digit + right[place + 1 :]
    assert not is_signed_by(key, fields, signature)
    assert is_signed_by(key, fields, changed) is (changed == right)


def test_the_headers_are_those_of_the_specified_form() -> None:
    """Computed by the description alone, as a producer in another language does."""
    key = bytes(range(32))
    headers = sign_headers(
        key,
        principal="alice",
        cluster="c1",
        queue="reservations",
        task="leasehold.reservations.submit",
        message_id="m-1",
        now=1790000000.25,
        body=b"[[{}], {}, null]",
    )
    digest = hashlib.sha256(b"[[{}], {}, null]").hexdigest()
    fields = [VERSION, "alice", "c1", "reservations", "leasehold.reservations.submit", "m-1", "1790000000.25", digest]
    canonical = "".join(f"{len(field)}:{field}," for field in fields).encode()
    expected = hmac.new(key, canonical, hashlib.sha256).hexdigest()
    assert headers == {"principal": "alice", "cluster": "c1", "signed_at": "1790000000.25", "signature": expected}


@SOME
@given(fields=RUNS, key=KEYS, other=KEYS, place=st.integers(0, 9), text=TEXTS)
def test_a_command_is_signed_for_one_key_and_one_request(
    fields: RunFields, key: bytes, other: bytes, place: int, text: str
) -> None:
    assume(fields[place] != text)
    assume(key != other)
    signature = sign_run(key, fields)
    changed = RunFields._make([*fields[:place], text, *fields[place + 1 :]])
    assert is_run_signed_by(key, fields, signature)
    assert not is_run_signed_by(key, changed, signature)
    assert not is_run_signed_by(other, fields, signature)


def test_the_signature_of_a_command_is_that_of_the_specified_form() -> None:
    """Computed by the description alone, as an agent in another language does."""
    key, digest = bytes(range(32)), hashlib.sha256(b'{"argv": ["true"]}').hexdigest()
    fields = RunFields("c1", "lab-7", "lab-7", "m-1", "0-ab", "night-1", "main", "7", "n1", digest)
    canonical = "".join(f"{len(field)}:{field}," for field in (RUN_VERSION, *fields)).encode()
    assert sign_run(key, fields) == hmac.new(key, canonical, hashlib.sha256).hexdigest()


def test_the_signature_of_a_command_is_none_of_a_message() -> None:
    """The first field of the signed bytes keeps both apart, whatever the other fields are."""
    message = encode_canonically(VERSION, *["x"] * 7)
    assert not message.startswith(encode_canonically(RUN_VERSION))


def test_a_made_key_is_read_back() -> None:
    assert len(read_key(make_key())) == 32
    assert make_key() != make_key()


@SOME
@given(key=st.binary(min_size=32, max_size=40))
def test_a_key_is_read_in_every_form_of_base64(key: bytes) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(key).decode()
        assert read_key(text) == read_key(text.rstrip("=")) == read_key(f" {text}\n") == key


@pytest.mark.parametrize("text", ["", "short", "a" * 20, "ä" * 43, "!" * 43, "a b" * 20])
def test_a_text_that_is_no_key_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r"not base64|fewer than 32 bytes") as refused:
        read_key(text)
    assert not text or text not in str(refused.value)


@pytest.mark.parametrize(
    ("line", "name", "cluster"),
    [
        ("{}", None, None),
        ("alice:{}", "alice", None),
        ("team:alice@lab:{}@c1\n", "team:alice@lab", "c1"),
        (":{}@", None, None),
        ("{}@c1", None, "c1"),
    ],
)
def test_a_key_file_is_the_key_with_or_without_name_and_cluster(
    line: str, name: str | None, cluster: str | None
) -> None:
    key = make_key()
    assert read_key_line(line.format(key)) == (name, read_key(key), cluster)


def test_a_written_key_file_is_read_back() -> None:
    key = make_key()
    assert read_key_line(format_key_line("alice@lab", key, "c1")) == ("alice@lab", read_key(key), "c1")


@pytest.mark.parametrize("text", ["", "\n", "a\nb", "alice:"])
def test_a_key_file_with_other_content_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"lines|base64|bytes"):
        read_key_line(text)
