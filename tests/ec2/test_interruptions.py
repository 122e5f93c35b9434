"""The feed of notices: one contract for SQS and for memory, and the parsing of EventBridge's events."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pytest
from structlog.testing import capture_logs

from scheduler.ports import CloudError, Notice, NoticeFeed
from tests.ec2.conftest import Emulator, Launch
from tests.memory_feed import MemoryFeed
from workers.ec2.clients import Ec2Access, make_queue_client
from workers.ec2.fleet import Ec2Fleet
from workers.ec2.interruptions import HEALTH, INTERRUPTION, REBALANCE, STATE_CHANGE, SqsFeed, make_feed, read_notices

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

AT = 1_763_700_000.0
"""2025-11-21T04:40:00Z."""
MACHINE = "i-0123456789abcdef0"


def an_event(kind: str = INTERRUPTION, **changes: Any) -> dict[str, Any]:
    """Return an event as EventBridge writes it (EC2 user guide)."""
    return {
        "version": "0",
        "id": "12345678-1234-1234-1234-123456789012",
        "detail-type": kind,
        "source": "aws.ec2",
        "account": "123456789012",
        "time": "2025-11-21T04:40:00Z",
        "region": "us-east-2",
        "resources": [f"arn:aws:ec2:us-east-2a:instance/{MACHINE}"],
        "detail": {"instance-id": MACHINE, "instance-action": "terminate"},
        **changes,
    }


RETIREMENT = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"
HEALTH_DETAIL: dict[str, Any] = {
    "eventArn": f"arn:aws:health:us-east-2::event/EC2/{RETIREMENT}/{RETIREMENT}_1",
    "service": "EC2",
    "eventTypeCode": RETIREMENT,
    "eventTypeCategory": "scheduledChange",
    "eventScopeCode": "ACCOUNT_SPECIFIC",
    "startTime": "Fri, 05 Dec 2025 06:00:00 GMT",
    "endTime": "Fri, 05 Dec 2025 08:00:00 GMT",
    "lastUpdatedTime": "Fri, 21 Nov 2025 04:40:00 GMT",
    "statusCode": "upcoming",
    "eventRegion": "us-east-2",
    "affectedEntities": [
        {"entityValue": MACHINE, "status": "PENDING", "lastUpdatedTime": "Fri, 21 Nov 2025 04:40:00 GMT"},
        {"entityValue": "h-0123456789abcdef0"},
        {"entityValue": "i-00000000000000001"},
    ],
    "affectedAccount": "123456789012",
    "page": "1",
    "totalPages": "1",
}
"""The detail of an event of AWS Health (user guide, "EventBridge schema")."""


def a_change(**detail: Any) -> dict[str, Any]:
    """Return an event of AWS Health about a scheduled change."""
    return an_event(HEALTH, source="aws.health", detail={**HEALTH_DETAIL, **detail})


def test_a_change_of_state_is_read_except_the_first_one() -> None:
    for state in ("running", "stopping", "stopped", "shutting-down", "terminated"):
        body = json.dumps(an_event(STATE_CHANGE, detail={"instance-id": MACHINE, "state": state}))
        assert read_notices(body) == (Notice(machine=MACHINE, kind="state", at=AT, state=state),)
    assert read_notices(json.dumps(an_event(STATE_CHANGE, detail={"instance-id": MACHINE, "state": "pending"}))) == ()


def test_a_scheduled_change_is_a_notice_for_each_machine() -> None:
    begins_at = 1_764_914_400.0
    assert read_notices(json.dumps(a_change())) == tuple(
        Notice(
            machine=machine, kind="maintenance", at=AT, code=RETIREMENT, begins_at=begins_at, ends_at=begins_at + 7200
        )
        for machine in (MACHINE, "i-00000000000000001")
    )
    for text in ("2025-12-05T06:00:00Z", "2025-12-05T06:00:00", "Fri, 05 Dec 2025 06:00:00 -0000"):
        (first, _) = read_notices(json.dumps(a_change(startTime=text)))
        assert first.begins_at == begins_at


@pytest.mark.parametrize("time", ["", " ", "soon", None, 7, {}, "Fri, 99 Dec 2025 06:00:00 GMT"])
def test_a_scheduled_change_without_a_readable_time_is_a_notice(time: object) -> None:
    notices = read_notices(json.dumps(a_change(startTime=time, endTime=time)))
    assert [(each.kind, each.begins_at, each.ends_at) for each in notices] == [("maintenance", None, None)] * 2


@pytest.mark.parametrize(
    "detail", [{"statusCode": "closed"}, {"service": "RDS"}, {"eventTypeCategory": "issue"}, {"affectedEntities": []}]
)
def test_other_events_of_aws_health_concern_no_machine(detail: dict[str, Any]) -> None:
    assert read_notices(json.dumps(a_change(**detail))) == ()


@pytest.mark.parametrize(
    ("body", "notice"),
    [
        (an_event(), Notice(machine=MACHINE, kind="interruption", at=AT)),
        (an_event(REBALANCE, detail={"instance-id": MACHINE}), Notice(machine=MACHINE, kind="rebalance", at=AT)),
        (an_event(time="2025-11-21T05:40:00.5+01:00"), Notice(machine=MACHINE, kind="interruption", at=AT + 0.5)),
    ],
)
def test_both_events_are_read(body: dict[str, Any], notice: Notice) -> None:
    assert read_notices(json.dumps(body)) == (notice,)
    assert notice.gone_at == notice.at + 120


FOREIGN = {
    "no JSON": "{",
    "no table": "[]",
    "empty": "",
    "another event": json.dumps(an_event("EBS Volume Notification")),
    "a change without a state": json.dumps(an_event(STATE_CHANGE)),
    "an unknown state": json.dumps(an_event(STATE_CHANGE, detail={"instance-id": MACHINE, "state": "dreaming"})),
    "a change of state by AWS Health": json.dumps(
        an_event(STATE_CHANGE, source="aws.health", detail={"instance-id": MACHINE, "state": "running"})
    ),
    "a scheduled change by EC2": json.dumps(an_event(HEALTH, detail=HEALTH_DETAIL)),
    "a scheduled change of no service": json.dumps(
        an_event(HEALTH, source="aws.health", detail={"eventTypeCode": RETIREMENT})
    ),
    "another source": json.dumps(an_event(source="my.app")),
    "no id": json.dumps(an_event(detail={})),
    "no machine's id": json.dumps(an_event(detail={"instance-id": "i-1; rm"})),
    "an id that is no text": json.dumps(an_event(detail={"instance-id": 7})),
    "no time": json.dumps({key: value for key, value in an_event().items() if key != "time"}),
    "a time without a zone": json.dumps(an_event(time="2025-11-21T04:40:00")),
    "a number for a time": json.dumps(an_event(time=AT)),
    "deep": "[" * 5000,
}


@pytest.mark.parametrize("body", FOREIGN.values(), ids=FOREIGN)
def test_anything_else_is_no_notice(body: str) -> None:
    with pytest.raises((msgspec.DecodeError, ValueError, RecursionError)):
        read_notices(body)


class MemoryBox:
    """A feed in memory whose hidden messages come again on a call."""

    def __init__(self) -> None:
        self._now = 0.0
        self.feed: NoticeFeed = MemoryFeed(lambda: self._now)

    def put(self, notice: Notice | None) -> None:
        self.feed.put(notice)  # type: ignore[attr-defined]

    def wait_until_they_come_again(self) -> None:
        self._now += 31


class SqsBox:
    """A queue in the emulator's SQS; received messages can be made visible again at once."""

    def __init__(self, access: Ec2Access) -> None:
        self.client: SQSClient = make_queue_client(access)
        self.url = self.client.create_queue(QueueName=f"notices-{uuid4().hex}")["QueueUrl"]
        self.feed: NoticeFeed = make_feed(self.url, access)
        self._given: list[str] = []

    def put(self, notice: Notice | None) -> None:
        kinds = {"interruption": INTERRUPTION, "rebalance": REBALANCE}
        event = an_event() if notice is None else an_event(kinds[notice.kind], detail={"instance-id": notice.machine})
        self.client.send_message(QueueUrl=self.url, MessageBody="what?" if notice is None else json.dumps(event))

    def wait_until_they_come_again(self) -> None:
        """Make the received messages visible again, as the end of their hidden time does."""
        self.feed = SqsFeed(self.client, self.url)
        for receipt in self._given:
            self.client.change_message_visibility(QueueUrl=self.url, ReceiptHandle=receipt, VisibilityTimeout=0)

    def note(self, receipts: list[str]) -> None:
        """Record the receipts of received messages."""
        self._given += receipts


@pytest.fixture(params=["memory", "sqs"])
def box(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "memory":
        yield MemoryBox()
        return
    box = SqsBox(request.getfixturevalue("access"))
    yield box
    box.client.delete_queue(QueueUrl=box.url)


def a_notice(number: int, kind: str = "interruption") -> Notice:
    return Notice(machine=f"i-{number:017x}", kind=kind, at=AT)  # type: ignore[arg-type]


class TestEveryFeed:
    def test_an_empty_one_gives_nothing(self, box: Any) -> None:
        assert box.feed.receive() == []

    def test_a_sent_message_is_received_with_its_content(self, box: Any) -> None:
        sent = [a_notice(1), a_notice(2, "rebalance"), None]
        for notice in sent:
            box.put(notice)
        found = [message.notices for message in _receive(box, len(sent))]
        assert sorted(found, key=repr) == sorted([() if each is None else (each,) for each in sent], key=repr)

    def test_a_message_that_is_deleted_never_comes_again(self, box: Any) -> None:
        box.put(a_notice(1))
        (message,) = _receive(box, 1)
        box.feed.delete([message.receipt])
        assert box.feed.receive() == []

    def test_a_message_that_is_not_deleted_comes_again_but_not_at_once(self, box: Any) -> None:
        box.put(a_notice(1))
        found = _receive(box, 1)
        assert box.feed.receive() == []
        if isinstance(box, SqsBox):
            box.note([message.receipt for message in found])
        box.wait_until_they_come_again()
        assert [message.notices for message in _receive(box, 1)] == [(a_notice(1),)]

    def test_deleting_nothing_or_twice_is_no_error(self, box: Any) -> None:
        box.put(a_notice(1))
        (message,) = _receive(box, 1)
        box.feed.delete([])
        box.feed.delete([message.receipt])
        box.feed.delete([message.receipt])

    def test_a_handful_comes_at_once_and_the_rest_later(self, box: Any) -> None:
        for number in range(23):
            box.put(a_notice(number))
        found = _receive(box, 23)
        assert len({notice.machine for message in found for notice in message.notices}) == 23


def _receive(box: Any, count: int) -> list[Any]:
    """Return this number of messages, received by as many calls as necessary."""
    found: list[Any] = []
    while len(found) < count:
        batch = box.feed.receive(1.0)
        assert 0 < len(batch) <= 10
        found += batch
    return found


def test_a_message_that_is_no_notice_is_logged(access: Ec2Access) -> None:
    box = SqsBox(access)
    box.put(None)
    with capture_logs() as lines:
        assert [message.notices for message in _receive(box, 1)] == [()]
    assert [line["action"] for line in lines] == ["interruptions.foreign"]


def test_a_queue_that_is_not_there_is_a_cloud_error(access: Ec2Access) -> None:
    feed = make_feed(f"{access.endpoint_url}/000000000000/nobody-made-it", access)
    with pytest.raises(CloudError, match=r"NonExistentQueue|QueueDoesNotExist"):
        feed.receive()


def test_an_interrupted_machine_is_described_as_interrupted(
    fleet: Ec2Fleet, launch: Launch, emulator: Emulator
) -> None:
    """Also if its notice was lost. A machine that we terminate or that dies is not marked so."""
    emulator.steer(terminate_seconds=600)
    taken, ended = launch(1), launch(2)
    emulator.ask("POST", "interrupt", {"instances": [taken.id], "deadline": 0})
    fleet.terminate([ended.id])
    found = fleet.describe([taken.id, ended.id])
    assert [(found[each.id].state, found[each.id].interrupted) for each in (taken, ended)] == [
        ("stopping", True),
        ("stopping", False),
    ]
