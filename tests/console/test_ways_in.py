"""When the console may start, and whether any caller can log in."""

from contextlib import closing
from typing import Any

import pytest

from leasehold.web.ways_in import find_refusal, has_way_in
from scheduler.model.validation import InvalidInputError
from scheduler.store.opening import open_store
from tests.console.test_gate import a_principal
from workers.settings import read_settings

EVERYWHERE = "0.0.0.0"  # noqa: S104 - the case that needs a way in
PROXY = {"user_header": "X-User", "trusted_proxies": ["10.0.0.7", "10.1.0.0/16"]}


@pytest.mark.parametrize(
    ("console", "local", "may"),
    [
        ({}, False, True),
        ({"host": "::1"}, True, True),
        ({"host": EVERYWHERE}, False, True),
        # The local stack is of its user alone.
        ({"host": EVERYWHERE, "token_file": "token"}, True, False),
    ],
)
def test_the_local_stack_serves_only_on_loopback(console: dict[str, Any], local: bool, may: bool) -> None:
    assert (find_refusal(read_settings({"console": console}), local=local) is None) is may


@pytest.mark.parametrize(("console", "has_one"), [({}, False), ({"token_file": "token"}, True), (PROXY, True)])
def test_a_token_or_a_proxy_is_a_way_in_without_a_principal(
    console: dict[str, Any], has_one: bool, sqlite_url: str
) -> None:
    with closing(open_store(sqlite_url)) as store:
        assert has_way_in(read_settings({"console": console}), store) is has_one


def test_a_principal_is_a_way_in_and_that_of_the_workers_is_none(sqlite_url: str) -> None:
    settings = read_settings({"console": {"host": EVERYWHERE}})
    with closing(open_store(sqlite_url)) as store:
        assert not has_way_in(settings, store)
        with store.transaction() as transaction:
            transaction.load_principals()
            transaction.save_principals([a_principal()])
        assert has_way_in(settings, store)


@pytest.mark.parametrize(
    ("console", "line"),
    [
        ({"user_header": "X-User"}, "console.trusted_proxies: expected both user_header and trusted_proxies"),
        ({"trusted_proxies": ["10.0.0.7"]}, "console.user_header: expected both user_header and trusted_proxies"),
        ({"trusted_proxies": ["x"], "user_header": "X"}, "console.trusted_proxies: expected addresses or networks"),
        ({"hosts": ["a b"]}, "console.hosts: expected names of hosts"),
        ({"hosts": "a.example, b:1"}, None),
        ({"prefix": "leasehold"}, 'console.prefix: expected a path like "/leasehold"'),
        ({"prefix": "/a/../"}, 'console.prefix: expected a path like "/leasehold"'),
        ({"prefix": "/a/b"}, None),
        ({"user_header": "X User", "trusted_proxies": ["::1"]}, "console.user_header: expected the name of an HTTP"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(console: dict[str, Any], line: str | None) -> None:
    if line is None:
        assert read_settings({"console": console}).console.port == 5580
        return
    with pytest.raises(InvalidInputError) as found:
        read_settings({"console": console})
    assert str(found.value).startswith(line)
