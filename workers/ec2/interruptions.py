"""Receive EC2's events about machines: notices of an interruption, rebalance recommendations, changes of state, and
scheduled changes. EventBridge sends them to an SQS queue, which is read by long polling.

Only this cluster reads the queue. A message that is none of these events is logged and deleted, because SQS would
deliver it again for days.
"""

import datetime as dt
from collections.abc import Sequence
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from scheduler.ports import Message, Notice
from workers.ec2.clients import LONGEST_POLL, Ec2Access, make_queue_client
from workers.ec2.errors import cloud_errors
from workers.logs import get_logger

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

log = get_logger(__name__)

MOST_MESSAGES: Final = 10
"""Most messages in one answer of SQS, and in one call that deletes messages."""
HIDDEN_SECONDS: Final = 30
"""Seconds after which SQS delivers a received message again if it was not deleted. This value overrides the setting of
the SQS queue.
"""

INTERRUPTION: Final = "EC2 Spot Instance Interruption Warning"
REBALANCE: Final = "EC2 Instance Rebalance Recommendation"
STATE_CHANGE: Final = "EC2 Instance State-change Notification"
HEALTH: Final = "AWS Health Event"
STATES: Final = ("running", "stopping", "stopped", "shutting-down", "terminated")
"""The states of a machine for which `read_notices` returns a Notice when they begin. Other states, such as `pending`,
have no effect.
"""

_Id = Annotated[str, msgspec.Meta(pattern=r"^i-[0-9a-f]{1,64}$")]


class _Detail(msgspec.Struct, frozen=True):
    instance_id: _Id = msgspec.field(name="instance-id")


class _StateDetail(_Detail, frozen=True):
    state: Literal["pending", "running", "stopping", "stopped", "shutting-down", "terminated"]


class _Entity(msgspec.Struct, frozen=True):
    value: str = msgspec.field(name="entityValue")


class _HealthDetail(msgspec.Struct, frozen=True, rename="camel"):
    """The field `detail` of an event of AWS Health, with only the fields that this module reads. Its times are written
    as in an HTTP header, e.g. `Sat, 04 Jun 2016 05:01:10 GMT`. A time that is not known yet may be missing or "".
    """

    service: str
    event_type_code: str
    event_type_category: str
    status_code: str = "open"
    start_time: Any = None
    end_time: Any = None
    affected_entities: tuple[_Entity, ...] = ()


class _Event(msgspec.Struct, frozen=True, tag_field="detail-type"):
    """An event as EventBridge sends it, with the fields that are read. Sources: EC2 user guide ("Spot interruption
    notices", "Rebalance recommendations", "State change events"); AWS Health user guide ("EventBridge schema").
    """

    source: Literal["aws.ec2", "aws.health"]
    time: Annotated[dt.datetime, msgspec.Meta(tz=True)]


class _Interruption(_Event, frozen=True, tag=INTERRUPTION):
    detail: _Detail


class _Rebalance(_Event, frozen=True, tag=REBALANCE):
    detail: _Detail


class _StateChange(_Event, frozen=True, tag=STATE_CHANGE):
    detail: _StateDetail


class _Health(_Event, frozen=True, tag=HEALTH):
    detail: _HealthDetail


_DECODER: Final = msgspec.json.Decoder(_Interruption | _Rebalance | _StateChange | _Health)


def read_notices(body: str) -> tuple[Notice, ...]:
    """Return EC2's notices in the body of an SQS message, as Notice objects: one, or for a scheduled change one for
    each machine. Return () for an event that has no effect on a machine: another event of AWS Health, a change that is
    over, or the beginning of a state that is not in STATES.

    Raises msgspec.DecodeError (with its subclass ValidationError) or ValueError if the body is none of these events.
    """
    event = _DECODER.decode(body)
    at = event.time.timestamp()
    if (event.source == "aws.health") != isinstance(event, _Health):
        raise msgspec.ValidationError(f"an event of this kind cannot have the source {event.source}")
    match event:
        case _Interruption():
            return (Notice(machine=event.detail.instance_id, kind="interruption", at=at),)
        case _Rebalance():
            return (Notice(machine=event.detail.instance_id, kind="rebalance", at=at),)
        case _StateChange():
            state = event.detail.state
            return (Notice(machine=event.detail.instance_id, kind="state", at=at, state=state),) * (state in STATES)
        case _:
            return tuple(_read_maintenance(event.detail, at))


def _read_maintenance(detail: _HealthDetail, at: float) -> list[Notice]:
    """Return a Notice for each machine that a scheduled change of EC2 concerns. Return [] for any other event of AWS
    Health, and for a change that is over.
    """
    if (detail.service, detail.event_type_category) != ("EC2", "scheduledChange") or detail.status_code == "closed":
        return []
    begins_at, ends_at = _read_time(detail.start_time), _read_time(detail.end_time)
    return [
        Notice(
            machine=each.value,
            kind="maintenance",
            at=at,
            code=detail.event_type_code,
            begins_at=begins_at,
            ends_at=ends_at,
        )
        for each in detail.affected_entities
        # Other entities are hosts and reservations of capacity.
        if each.value.startswith("i-")
    ]


def _read_time(text: object) -> float | None:
    """Return an optional time in seconds since the epoch; None if it is missing or unreadable. The change is announced
    also without it. A time without a zone is in UTC.
    """
    if not isinstance(text, str):
        return None
    for read in (dt.datetime.fromisoformat, parsedate_to_datetime):
        with suppress(ValueError, OverflowError, TypeError, IndexError):
            at = read(text)
            return (at if at.tzinfo else at.replace(tzinfo=dt.UTC)).timestamp()
    return None


class SqsFeed:
    """Reads EC2's events from an SQS queue. Several threads may use it."""

    def __init__(self, client: "SQSClient", url: str, hidden_seconds: int = HIDDEN_SECONDS) -> None:
        self._client, self._url, self._hidden_seconds = client, url, hidden_seconds

    def receive(self, wait_seconds: float = 0.0) -> list[Message]:
        """Return the messages that SQS delivers. Wait for the first one for up to `wait_seconds` (whole seconds, 20 at
        most).
        """
        with cloud_errors():
            answer = self._client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=MOST_MESSAGES,
                WaitTimeSeconds=max(0, min(LONGEST_POLL, int(wait_seconds))),
                VisibilityTimeout=self._hidden_seconds,
            )
        return [
            Message(found["ReceiptHandle"], _read(found.get("MessageId", ""), found.get("Body", "")))
            for found in answer.get("Messages", ())
        ]

    def delete(self, receipts: Sequence[str]) -> None:
        """Delete received messages from the SQS queue, by their receipts, so that SQS does not deliver them again. Each
        call deletes at most ten messages. A message that SQS could not delete is delivered again.
        """
        for first in range(0, len(receipts), MOST_MESSAGES):
            some = receipts[first : first + MOST_MESSAGES]
            entries = [{"Id": str(number), "ReceiptHandle": receipt} for number, receipt in enumerate(some)]
            with cloud_errors():
                self._client.delete_message_batch(QueueUrl=self._url, Entries=entries)  # type: ignore[arg-type]


def _read(message: str, body: str) -> tuple[Notice, ...]:
    try:
        return read_notices(body)
    except (msgspec.DecodeError, UnicodeError, ValueError, RecursionError) as error:
        log.warning(
            "A message in the interruption queue is no event about a machine; it is deleted.",
            action="interruptions.foreign",
            message=message,
            error=str(error),
        )
        return ()


def make_feed(url: str, access: Ec2Access) -> SqsFeed:
    """Return the feed of EC2's events from the SQS queue with this URL.

    Raises CloudError (auth or misconfigured) if boto3 cannot make a client.
    """
    return SqsFeed(make_queue_client(access), url)
