"""The one rule that removes secrets from URLs: whatever characters they have, no part of one is left."""

import json
from typing import Final
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.model.validation import InvalidInputError, show
from scheduler.protocol.masking import mask_url, mask_urls, show_url
from scheduler.store.opening import open_store
from workers.logs import mask_text

ODD: Final = "@:/?#&=%+\"'[]{}()<>|\\^`~!$*,;._- äß€"
MARK: Final = "sesame"
"""A part of every secret below, so that a part that is left is found."""
SECRETS = st.tuples(st.text(ODD, max_size=4), st.text(ODD, max_size=4)).map(lambda ends: f"{ends[0]}{MARK}{ends[1]}")
WORDS = st.text("abcXYZ019", min_size=1, max_size=6)
DATABASES = st.sampled_from(["redis", "rediss", "postgresql", "postgresql+psycopg", "mysql", "amqp"])
PARAMETERS = st.sampled_from(["password", "sslpassword", "ssl_password", "passfile", "token", "pwd", "anything", "x y"])


@given(DATABASES, WORDS, SECRETS, WORDS)
@example("postgresql", "u", f"p@{MARK}", "h")
@example("redis", "", f":{MARK}@{MARK}", "h")
@example("redis", "u", f"12/{MARK}", "h")
@example("postgresql", "u", f"a?password={MARK}@{MARK}", "h")
def test_no_part_of_a_password_is_shown(scheme: str, user: str, secret: str, host: str) -> None:
    for url in (
        f"{scheme}://{user}:{secret}@{host}:6379/0",
        f"{scheme}://{user}:{quote(secret, safe='')}@{host}/d?x=1",
    ):
        for shown in (show_url(url), mask_url(url)):
            assert MARK not in shown
            assert shown.startswith(f"{scheme}://")


@given(DATABASES, PARAMETERS, SECRETS, st.booleans())
@example("postgresql", "password", f"a@{MARK}", False)
@example("postgresql", "password", f"a&{MARK}=b", False)
@example("redis", "password", f"a#{MARK}", False)
def test_no_part_of_a_parameter_is_shown(scheme: str, name: str, secret: str, has_login: bool) -> None:
    login = f"me:{MARK}@" if has_login else ""
    for value in (secret, quote(secret, safe="")):
        for query in (f"?{name}={value}", f"?sslmode=require&{name}={value}", f"?{name}={value}&sslmode=require"):
            url = f"{scheme}://{login}host/name{query}"
            assert MARK not in show_url(url)
            assert MARK not in mask_url(url)


@given(DATABASES, SECRETS.filter(lambda secret: not set(secret) & set(" \\äß€\"'")), st.booleans())
def test_no_part_of_a_secret_is_left_in_a_text(scheme: str, secret: str, in_query: bool) -> None:
    url = f"{scheme}://host/0?password={secret}" if in_query else f"{scheme}://me:{secret}@host/0"
    for text in (f"cannot reach {url}: refused", f"[{url}]", f"{url} and {url}", json.dumps({"a": url, "b": [url]})):
        assert MARK not in mask_urls(text)
        assert MARK not in mask_text(text)
        assert MARK not in show({"got": text})


@pytest.mark.parametrize(
    ("url", "shown", "masked"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://:secret@h:1/0", "redis://h:1/0", "redis://:***@h:1/0"),
        ("redis://me@h:1/0", "redis://h:1/0", "redis://me@h:1/0"),
        (
            "rediss://me:a@b@h/0?ssl_cert_reqs=none&ssl_password=x",
            "rediss://h/0?ssl_cert_reqs=none&ssl_password=***",
            "rediss://me:***@h/0?ssl_cert_reqs=none&ssl_password=***",
        ),
        ("postgresql://u:a/b@c@h/x", "postgresql://h/x", "postgresql://u:***@h/x"),
        ("postgresql://h/x?password=a@b", "postgresql://***", "postgresql://***"),
        ("sqlite:////home/a@b/x.db", "sqlite:////home/a@b/x.db", "sqlite:////home/a@b/x.db"),
        ("memory://", "memory://", "memory://"),
        ("https://sqs.us-east-1.amazonaws.com/1/q", *["https://sqs.us-east-1.amazonaws.com/1/q"] * 2),
        ("http://host:80/a@b", "http://host:80/a@b", "http://host:80/a@b"),
        ("http://me:x@host:80/a", "http://host:80/a", "http://me:***@host:80/a"),
        ("http://me:x@host:80/a@b", "http://b", "http://me:***@b"),
        ("redis:/:secret@h", "(hidden)", "(hidden)"),
    ],
)
def test_a_text_without_a_secret_stays(url: str, shown: str, masked: str) -> None:
    assert (show_url(url), mask_url(url)) == (shown, masked)
    if "://" in url:
        assert mask_urls(f"see {url} there") == f"see {masked} there"


def test_a_database_url_with_an_unencoded_at_sign_in_its_password_is_refused() -> None:
    for url in (f"postgresql://u:p@{MARK}@h/d", f"postgresql://u:p@{MARK}/x@h/d"):
        with pytest.raises(InvalidInputError, match="%40") as found:
            open_store(url)
        assert MARK not in str(found.value)
