"""Odd requests to the HTTP API, which schemathesis makes from its OpenAPI document: valid ones, and such that break it.

No request may get status 500 or 502, no answer, or an answer with a raw control character.
"""

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, product
from typing import Any, Final

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok

from leasehold.api.openapi import make_document
from scheduler.protocol.verbs import Role
from tests.fuzz.command_line import RAW

AnyCase = Case[Any]
Failures = dict[str, str]
"""A request that failed -> what was wrong with its answer."""
_LONGEST_SECONDS: Final = 0.05
_FAILED: Final = frozenset({500, 502})


def make_login(name: str, key: str) -> str:
    """Return the header Authorization of a principal."""
    return f"Basic {b64encode(f'{name}:{key}'.encode()).decode()}"


class Sender:
    """Sends requests to the API at `address` with one header Authorization, and collects those that failed."""

    def __init__(self, address: str, login: str) -> None:
        self._address, self._login, self._session = address, login, requests.Session()
        self.failures: Failures = {}
        self.statuses: Counter[int] = Counter()

    def send(self, case: AnyCase) -> None:
        """Send one request. Streams are read up to their head."""
        _shorten(case)
        form = case.as_transport_kwargs(base_url=self._address)
        form["headers"] = {**form.get("headers", {}), "Authorization": self._login}
        name = f"{form['method']} {form['url']} { {each: form.get(each) for each in ('params', 'json', 'data')}!a}"
        try:
            with self._session.request(**form, stream=True, timeout=60, allow_redirects=False) as answer:
                self.statuses[answer.status_code] += 1
                is_stream = "event-stream" in answer.headers.get("Content-Type", "")
                text = "" if is_stream else answer.content.decode()
        except (UnicodeError, requests.exceptions.InvalidHeader, requests.exceptions.InvalidURL):
            # The library for the test cannot send it.
            self.statuses[0] += 1
            return
        except requests.exceptions.RequestException as error:
            self.failures[name] = repr(error)
            return
        if answer.status_code in _FAILED or RAW & {*text}:
            self.failures[name] = f"{answer.status_code} {text[:500]!a}"


def _shorten(case: AnyCase) -> None:
    """Make the times to wait short: a request would wait for up to 30 seconds."""
    for values in (case.query, case.body):
        for name in ("wait", "timeout"):
            if isinstance(values, dict) and isinstance(seconds := values.get(name), int | float):
                values[name] = min(seconds, _LONGEST_SECONDS)


def fuzz(
    address: str, logins: Mapping[Role, str], examples: int, first: int = 0, share: int = 1
) -> tuple[Failures, Counter[int]]:
    """Send about `examples` requests for each operation, each of both modes, and each login (role -> its header).
    `share`: leave out all but each `share`th operation, mode and login. Return the requests that failed, and how often
    each status came.
    """
    failures: Failures = {}
    statuses: Counter[int] = Counter()
    for (role, login), strategy in islice(product(logins.items(), list_strategies()), first % share, None, share):
        sender = Sender(address, login)
        limits = settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        seed(first)(limits(given(case=strategy)(_make_test(sender))))()
        failures |= {f"{role}: {name}": wrong for name, wrong in sender.failures.items()}
        statuses += sender.statuses
    return failures, statuses


def _make_test(sender: Sender) -> Callable[[AnyCase], None]:
    def test(case: AnyCase) -> None:
        sender.send(case)

    return test


def list_strategies() -> Iterator[Any]:
    """Yield for each operation how to make its requests: those that the document permits, and others."""
    schema = schemathesis.openapi.from_dict(make_document("/api/v1"))
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            yield found.ok().as_strategy(generation_mode=mode)
