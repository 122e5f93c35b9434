"""When the console may start."""

from typing import Any

import pytest

from leasehold.web.ways_in import find_refusal, has_principals
from scheduler.model.validation import InvalidInputError
from scheduler.store.opening import open_store
from tests.console.test_gate import a_principal
from workers.settings import read_settings

EVERYWHERE = "0.0.0.0"  # noqa: S104 - the case that needs a way in
PROXY = {"user_header": "X-User", "trusted_proxies": ["10.0.0.7", "10.1.0.0/16"]}


@pytest.mark.parametrize(
    ("console", "known", "local", "may"),
    [
        ({}, False, False, True),
        ({"host": "::1"}, False, True, True),
        ({"host": EVERYWHERE}, False, False, False),
        ({"host": EVERYWHERE}, True, False, True),
        ({"host": EVERYWHERE, "token_file": "token"}, False, False, True),
        ({"host": EVERYWHERE, **PROXY}, False, False, True),
        # The local stack is of its user alone.
        ({"host": EVERYWHERE, "token_file": "token"}, True, True, False),
    ],
)
def test_an_address_that_others_reach_needs_a_way_in(
    console: dict[str, Any], known: bool, local: bool, may: bool
) -> None:
    refusal = find_refusal(read_settings({"console": console}), has_principals=known, local=local)
    assert (refusal is None) is may


def test_the_principal_of_the_workers_is_no_way_in(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    assert not has_principals(store)
    with store.transaction() as transaction:
        transaction.load_principals()
        transaction.save_principals([a_principal()])
    assert has_principals(store)
    store.close()


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
