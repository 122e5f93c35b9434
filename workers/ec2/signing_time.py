"""Sign requests to AWS with the time of AWS instead of the wall clock of this host.

AWS refuses a request whose signing time is wrong by minutes. Each answer of AWS has a header `Date`; the time of AWS is
the last such date, advanced by the monotonic clock. The first request is signed with the wall clock. If AWS refuses it
with a date that is far from the signing time, the request is signed again and repeated once.
"""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import Any, Final

from botocore.auth import AUTH_TYPE_MAPS, SIGV4_TIMESTAMP, SigV4Auth
from botocore.client import BaseClient

SIGNATURE: Final = "v4-time-of-aws"
TOLERANCE: Final = 60.0
"""If AWS refuses a request, and the `Date` of the refusal is more than this number of seconds from the signing time,
the request is repeated.

AWS itself allows minutes. A `Date` is in whole seconds, and is older by the time that the answer took.
"""
_PLAIN_SIGNATURE: Final = "v4"
_CLOCK: Final = "time_of_aws"
_REFUSED: Final = range(400, 500)


class AwsClock:
    """A clock that shows the time of AWS: the `Date` of its last answer, advanced by the monotonic clock. Safe for
    threads.
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._guard = Lock()
        self._ahead: float | None = None
        """Seconds by which the time of AWS is ahead of the monotonic clock; None before the first answer of AWS."""

    def now(self) -> float:
        """Return the time of AWS in seconds since the epoch. Before the first answer of AWS return the time of the wall
        clock.
        """
        with self._guard:
            return self._wall() if self._ahead is None else self._ahead + self._monotonic()

    def note(self, date: float) -> None:
        """Set the clock to `date`, the time (in seconds since the epoch) in an answer of AWS that has just arrived."""
        with self._guard:
            self._ahead = date - self._monotonic()

    def guard(self, client: BaseClient) -> None:
        """Sign every request of this boto3 client with the time of this clock, and set the clock with each answer."""
        # The stubs know no handlers with a result.
        events: Any = client.meta.events
        service = client.meta.service_model.service_id.hyphenize()
        events.register(f"choose-signer.{service}", self._choose_signer)
        events.register(f"response-received.{service}", self._learn)
        events.register(f"needs-retry.{service}", self._decide_on_retry)

    def _choose_signer(self, signature_version: object, context: dict[str, Any], **_event: Any) -> str | None:
        if signature_version != _PLAIN_SIGNATURE:
            return None
        context[_CLOCK] = self
        return SIGNATURE

    def _learn(self, response_dict: Mapping[str, Any] | None, **_event: Any) -> None:
        date = read_date(response_dict["headers"]) if response_dict else None
        if date is not None:
            self.note(date)

    def _decide_on_retry(
        self, response: Any, attempts: int, request_dict: Mapping[str, Any], **_event: Any
    ) -> float | None:
        """Return the seconds after which boto3 repeats a request. If AWS refused the first attempt because of the
        signing time, return 0 (at once). Else return None, so that boto3 decides.
        """
        signed_at = request_dict["context"].get("timestamp")
        if attempts > 1 or response is None or signed_at is None or response[0].status_code not in _REFUSED:
            return None
        date = read_date(response[0].headers)
        return 0.0 if date is not None and abs(date - read_timestamp(signed_at)) > TOLERANCE else None


class _TimedAuth(SigV4Auth):
    """AWS signature version 4 whose time comes from the client's AwsClock instead of the wall clock."""

    def _modify_request_before_signing(self, request: Any) -> None:
        # Called after botocore has set the timestamp by the wall clock, and before it signs with it.
        now = datetime.fromtimestamp(request.context[_CLOCK].now(), UTC)
        request.context["timestamp"] = now.strftime(SIGV4_TIMESTAMP)
        super()._modify_request_before_signing(request)  # type: ignore[misc]  # the stubs list public methods only


AUTH_TYPE_MAPS[SIGNATURE] = _TimedAuth


def read_date(headers: Mapping[str, str]) -> float | None:
    """Return the `Date` header of an answer in seconds since the epoch; None if it is missing or unreadable."""
    try:
        return parsedate_to_datetime(headers["Date"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return None


def read_timestamp(text: str) -> float:
    """Return the time in an AWS signature, like 20260102T030405Z, in seconds since the epoch.

    Raises ValueError if `text` has another form.
    """
    return datetime.strptime(text, SIGV4_TIMESTAMP).replace(tzinfo=UTC).timestamp()
