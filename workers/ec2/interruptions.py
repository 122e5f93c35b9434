"""Receive EC2's interruption and rebalance notices: events of EventBridge, read from an SQS queue by long polling.

Only this cluster reads the queue. A message that is no such notice is logged and deleted, because SQS would deliver it
again for days.
"""

import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec

from scheduler.ports import Message, Notice
from workers.ec2.clients import LONGEST_POLL, Ec2Access, make_queue_client
from workers.ec2.errors import cloud_errors
from workers.logs import get_logger

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

log = get_logger(__name__)

MOST_MESSAGES: Final = 10
"""Most messages in one answer of SQS."""
HIDDEN_SECONDS: Final = 30
"""Seconds after which SQS delivers a received message again if it was not deleted. This value overrides the setting of
the SQS queue.
"""

INTERRUPTION: Final = "EC2 Spot Instance Interruption Warning"
REBALANCE: Final = "EC2 Instance Rebalance Recommendation"
KINDS: Final[dict[str, Literal["interruption", "rebalance"]]] = {INTERRUPTION: "interruption", REBALANCE: "rebalance"}


class _Detail(msgspec.Struct, frozen=True):
    instance_id: Annotated[str, msgspec.Meta(pattern=r"^i-[0-9a-f]{1,64}$")] = msgspec.field(name="instance-id")


class _Event(msgspec.Struct, frozen=True):
    """An interruption or rebalance notice as EC2 sends it, with the fields that are read (EC2 user guide: "Spot
    interruption notices", "Rebalance recommendations").
    """

    source: Literal["aws.ec2"]
    kind: Literal["EC2 Spot Instance Interruption Warning", "EC2 Instance Rebalance Recommendation"] = msgspec.field(
        name="detail-type"
    )
    time: Annotated[dt.datetime, msgspec.Meta(tz=True)]
    detail: _Detail


def read_notice(body: str) -> Notice:
    """Return the interruption or rebalance notice in the body of an SQS message.

    Raises msgspec.DecodeError, or its subclass ValidationError, unless the body is one of these two events.
    """
    event = msgspec.json.decode(body, type=_Event)
    return Notice(machine=event.detail.instance_id, kind=KINDS[event.kind], at=event.time.timestamp())


class SqsFeed:
    """Reads interruption and rebalance notices from an SQS queue. Several threads may use it."""

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
        """Delete received messages from the SQS queue, by their receipts, so that SQS does not deliver them again."""
        for receipt in receipts:
            with cloud_errors():
                self._client.delete_message(QueueUrl=self._url, ReceiptHandle=receipt)


def _read(message: str, body: str) -> Notice | None:
    try:
        return read_notice(body)
    except (msgspec.DecodeError, UnicodeError, ValueError) as error:
        log.warning(
            "A message in the interruption queue is no interruption or rebalance notice; it is deleted.",
            action="interruptions.foreign",
            message=message,
            error=str(error),
        )
        return None


def make_feed(url: str, access: Ec2Access) -> SqsFeed:
    """Return the feed of notices from the SQS queue with this URL.

    Raises CloudError (auth or misconfigured) if boto3 cannot make a client.
    """
    return SqsFeed(make_queue_client(access), url)
