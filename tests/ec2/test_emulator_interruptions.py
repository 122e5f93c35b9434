"""Background events: interruptions and recommendations through EventBridge and SQS, and machines that die."""

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from leasehold_emulator import EmulatorServer
from leasehold_emulator.background_events import RETIREMENT

from tests.ec2.conftest import REGION, Emulator, Launch
from tests.ec2.test_emulator import eventually
from tests.ec2.test_emulator_boots import describe
from tests.ec2.test_emulator_limits import run
from workers.ec2.fleet import Ec2Fleet
from workers.ec2.interruptions import HEALTH, STATE_CHANGE, read_notices

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

WARNING = "EC2 Spot Instance Interruption Warning"
ACCOUNT = "123456789012"


class Queue:
    """A queue as its reader sees it."""

    def __init__(self, sqs: Any, url: str) -> None:
        self.url = url
        self._sqs = sqs

    def take(self, kind: str = "") -> list[dict[str, Any]]:
        """Receive all messages that are there, and return those of this kind; by default all except changes of
        states.
        """
        events = self._take()
        return [each for each in events if each["detail-type"] == kind or not (kind or "State" in each["detail-type"])]

    def _take(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while messages := self._sqs.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10).get("Messages"):
            for message in messages:
                found.append(json.loads(message["Body"]))
                self._sqs.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])
        return found


@pytest.fixture(scope="module")
def session() -> boto3.session.Session:
    return boto3.session.Session("testing", "testing", region_name=REGION)


@pytest.fixture
def queue(emulator: Emulator, session: boto3.session.Session) -> Iterator[Queue]:
    emulator.steer(interruption_queue="notices")
    url = emulator.ask("GET", "health")[1]["interruption_queue"]
    assert url == f"{emulator.url}/{ACCOUNT}/notices"
    yield Queue(session.client("sqs", endpoint_url=emulator.url), url)
    emulator.steer(interruption_queue=None)


def test_an_instance_has_the_state_reason_of_its_end(emulator: Emulator, plain: "EC2Client") -> None:
    """Table: how it ends or stops -> state, code and message, in EC2's words."""
    ways: dict[str, Callable[[str], object]] = {
        "called": lambda machine: plain.terminate_instances(InstanceIds=[machine]),
        "stopped": lambda machine: plain.stop_instances(InstanceIds=[machine]),
        "started": lambda machine: (
            plain.stop_instances(InstanceIds=[machine]),
            plain.start_instances(InstanceIds=[machine]),
        ),
        "retired": lambda machine: emulator.order("maintain", machine, begins_in=0),
        "lost": lambda machine: emulator.order("lose", machine),
        "shut down": lambda machine: emulator.order("lose", machine, code="Client.InstanceInitiatedShutdown"),
        "named": lambda machine: emulator.order("lose", machine, code="Client.InternalError", message="a bad key"),
    }
    found = dict[str, tuple[str, ...]]()
    for way, act in ways.items():
        run(plain)
        machine = emulator.history()[-1]["id"]
        act(machine)
        instance = describe(plain, machine)
        reason = instance.get("StateReason", {})
        found[way] = (instance["State"]["Name"], reason.get("Code", ""), reason.get("Message", ""))
        assert instance.get("StateTransitionReason", "").startswith("User initiated (") == (
            way in {"called", "stopped"}
        )
    user = ("Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")
    inside = "Client.InstanceInitiatedShutdown"
    assert found == {
        "called": ("terminated", *user),
        "stopped": ("stopped", *user),
        "started": ("running", "", ""),
        "retired": (
            "terminated",
            "Server.ScheduledStop",
            "Server.ScheduledStop: Stopped due to a scheduled retirement",
        ),
        "lost": ("terminated", "Server.InternalError", "Server.InternalError: Internal error"),
        "shut down": ("terminated", inside, f"{inside}: Instance initiated shutdown"),
        "named": ("terminated", "Client.InternalError", "Client.InternalError: a bad key"),
    }


def test_an_interruption_is_announced_by_eventbridge_and_then_done(
    launch: Launch, emulator: Emulator, queue: Queue, client: "EC2Client"
) -> None:
    machine, other = launch(1), launch(2)
    [warned] = emulator.order("interrupt", machine.id, deadline=0.5)
    assert (warned["event"], warned["instances"], warned["notices"]) == ("warned", [machine.id], 1)
    [event] = queue.take()
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", event.pop("id"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", event.pop("time"))
    assert event == {
        "version": "0",
        "detail-type": WARNING,
        "source": "aws.ec2",
        "account": ACCOUNT,
        "region": REGION,
        "resources": [f"arn:aws:ec2:us-east-1a:instance/{machine.id}"],
        "detail": {"instance-id": machine.id, "instance-action": "terminate"},
    }
    eventually(lambda: [event["event"] for event in emulator.events()] == ["warned", "interrupted"])
    assert emulator.events()[1]["time"] >= warned["deadline"] > warned["time"]
    assert {found["id"]: found["state"] for found in emulator.instances()} == {
        machine.id: "terminated",
        other.id: "running",
    }
    [reservation] = client.describe_instances(InstanceIds=[machine.id])["Reservations"]
    assert reservation["Instances"][0]["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    lives = {life["id"]: life for life in emulator.history()}
    assert lives[machine.id]["cause"] == "interrupted"
    assert lives[machine.id]["token"] == "launch-1.1"
    assert warned["deadline"] <= lives[machine.id]["terminated_at"] <= time.time()
    assert lives[other.id]["terminated_at"] is None


@pytest.mark.parametrize("order", [{}, {"deadline": 30}, {"deadline": 600}])
def test_a_notice_is_dated_so_that_readers_compute_the_ordered_end(
    order: dict[str, float], launch: Launch, emulator: Emulator, queue: Queue
) -> None:
    """AWS' event has no field for the end, which is two minutes after the event's time in whole seconds."""
    [warned] = emulator.order("interrupt", launch().id, **order)
    [event] = queue.take()
    assert warned["deadline"] == pytest.approx(warned["time"] + order.get("deadline", 120), abs=1)
    assert [each.gone_at for each in read_notices(json.dumps(event))] == [int(warned["deadline"])]


def test_a_second_notice_does_not_delay_the_end(launch: Launch, emulator: Emulator, queue: Queue) -> None:
    machine = launch()
    [first] = emulator.order("interrupt", machine.id, deadline=60)
    emulator.order("interrupt", machine.id)
    assert [read_notices(json.dumps(event))[0].gone_at for event in queue.take()] == [int(first["deadline"])] * 2


def test_an_instance_that_ended_before_is_not_interrupted(
    launch: Launch, fleet: Ec2Fleet, emulator: Emulator, queue: Queue
) -> None:
    first, second = launch(1), launch(2)
    emulator.order("interrupt", first.id, second.id, deadline=0.2)
    fleet.terminate([first.id])
    eventually(lambda: len(emulator.events()) == 3)
    assert emulator.events()[2]["instances"] == [second.id]
    assert {life["id"]: life["cause"] for life in emulator.history()} == {first.id: "call", second.id: "interrupted"}


def test_the_rules_on_the_bus_decide(
    launch: Launch, emulator: Emulator, queue: Queue, session: boto3.session.Session
) -> None:
    events = session.client("events", endpoint_url=emulator.url)
    sqs = session.client("sqs", endpoint_url=emulator.url)
    own = Queue(sqs, sqs.create_queue(QueueName="own")["QueueUrl"])
    events.put_rule(Name="own", EventPattern=json.dumps({"detail-type": [WARNING]}))
    arn = sqs.get_queue_attributes(QueueUrl=own.url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    events.put_targets(Rule="own", Targets=[{"Id": "own", "Arn": arn}])
    machine = launch()
    emulator.order("interrupt", machine.id)
    emulator.order("rebalance", machine.id)
    assert [event["detail-type"] for event in own.take()] == [WARNING]
    assert len(queue.take()) == 2
    events.disable_rule(Name="own")
    emulator.order("interrupt", machine.id)
    assert own.take() == []
    # Only the notices of the missing target are lost.
    events.enable_rule(Name="own")
    sqs.delete_queue(QueueUrl=own.url)
    emulator.order("interrupt", machine.id)
    assert len(queue.take()) == 2


def test_a_rebalance_hint_has_ec2s_shape_and_ends_nothing(launch: Launch, emulator: Emulator, queue: Queue) -> None:
    machine = launch()
    [hint] = emulator.order("rebalance", machine.id)
    assert (hint["event"], hint["notices"]) == ("rebalance", 1)
    [event] = queue.take()
    assert (event["detail-type"], event["detail"], event["resources"]) == (
        "EC2 Instance Rebalance Recommendation",
        {"instance-id": machine.id},
        [f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/{machine.id}"],
    )
    assert emulator.history()[0]["end_asked_at"] is None


@pytest.mark.parametrize(("settings", "copies"), [({}, 1), ({"dropped_notices": 1}, 0), ({"doubled_notices": 1}, 2)])
def test_notices_may_be_dropped_or_doubled(
    settings: dict[str, object], copies: int, launch: Launch, emulator: Emulator, queue: Queue
) -> None:
    emulator.steer(**settings)
    [warned] = emulator.order("interrupt", launch().id)
    assert warned["notices"] == copies
    assert len(queue.take()) == copies


def test_an_instance_may_die_without_notice(launch: Launch, emulator: Emulator, queue: Queue) -> None:
    machine = launch()
    [event] = emulator.order("lose", machine.id)
    assert event["event"] == "lost"
    assert emulator.instances()[0]["state"] == "terminated"
    assert emulator.history()[0]["cause"] == "lost"
    assert queue.take() == []


def test_interruptions_at_a_rate_come_by_themselves(launch: Launch, emulator: Emulator, queue: Queue) -> None:
    # On average after 0.01 s.
    emulator.steer(interruption_rate=360_000, interruption_deadline=60)
    machines = {launch(number).id for number in range(4)}
    eventually(lambda: len(emulator.events()) == 4)
    assert {event["instances"][0] for event in emulator.events()} == machines
    assert {event["detail"]["instance-id"] for event in queue.take()} == machines
    assert all(life["deadline"] == pytest.approx(life["warned_at"] + 60) for life in emulator.history())


@pytest.mark.parametrize(
    ("what", "document", "message"),
    [
        ("interrupt", {"instances": ["i-00000000"]}, "instances[0]: expected the id of a spot instance that is alive"),
        ("lose", {"instances": ["i-00000000"]}, "instances[0]: expected the id of an instance that is alive"),
        ("interrupt", {}, "instances: expected a value, got nothing"),
        ("interrupt", {"instances": "i-1"}, "instances: expected a list"),
        ("interrupt", {"instances": [], "deadline": -1}, "deadline: expected a duration"),
        ("rebalance", {"instances": [], "deadline": 1}, "deadline: expected a known key"),
    ],
)
def test_a_wrong_order_is_refused_by_name_and_changes_nothing(
    what: str, document: object, message: str, launch: Launch, emulator: Emulator
) -> None:
    launch()
    status, answer = emulator.ask("POST", what, document)
    assert status == 400
    assert message in answer["error"]
    assert emulator.events() == []


def test_an_order_with_one_wrong_instance_changes_nothing(launch: Launch, emulator: Emulator) -> None:
    machine = launch()
    assert emulator.ask("POST", "lose", {"instances": [machine.id, "i-00000000"]})[0] == 400
    assert [instance["state"] for instance in emulator.instances()] == ["running"]


def test_the_queue_outlives_a_reset(emulator: Emulator, queue: Queue, launch: Launch, server: EmulatorServer) -> None:
    emulator.ask("POST", "reset")
    emulator.order("interrupt", launch().id)
    assert len(queue.take()) == 1


def test_a_wrong_name_of_a_queue_is_refused(emulator: Emulator) -> None:
    status, answer = emulator.ask("PUT", "settings", {"interruption_queue": "no/queue"})
    assert status == 400
    assert answer["error"].startswith("interruption_queue: expected the name of an SQS queue")


def states_of(events: list[dict[str, Any]], machine: str) -> list[str]:
    return [each["detail"]["state"] for each in events if each["detail"]["instance-id"] == machine]


def test_each_change_of_a_state_has_an_event_in_ec2s_shape(
    launch: Launch, fleet: Ec2Fleet, emulator: Emulator, queue: Queue
) -> None:
    """The rule that the emulator makes does not want the state `pending`."""
    emulator.steer(boot_seconds=0.2, terminate_seconds=0.2)
    machine, other = launch(1), launch(2)
    found: list[dict[str, Any]] = []

    def has(state: str) -> bool:
        found.extend(queue.take(STATE_CHANGE))
        return states_of(found, machine.id)[-1:] == [state]

    eventually(lambda: has("running"))
    fleet.terminate([machine.id])
    eventually(lambda: has("terminated"))
    assert states_of(found, machine.id) == ["running", "shutting-down", "terminated"]
    assert states_of(found, other.id) == ["running"]
    event = found[0]
    assert event["source"] == "aws.ec2"
    assert event["resources"] == [f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/{event['detail']['instance-id']}"]
    assert emulator.events() == []


def test_a_state_of_a_moment_has_an_event_too_and_each_may_be_doubled(
    launch: Launch, emulator: Emulator, queue: Queue
) -> None:
    emulator.steer(doubled_notices=1)
    machine = launch(1)
    emulator.order("lose", machine.id)
    found: list[dict[str, Any]] = []

    def are_all_there() -> bool:
        found.extend(queue.take(STATE_CHANGE))
        return states_of(found, machine.id).count("terminated") == 2

    eventually(are_all_there)
    # Whether the machine was seen to run before it died depends on when the emulator looked.
    seen = [state for state in states_of(found, machine.id) if state != "running"]
    assert seen == ["shutting-down"] * 2 + ["terminated"] * 2


def test_a_scheduled_change_is_announced_by_aws_health_and_retires_the_machine(
    launch: Launch, emulator: Emulator, queue: Queue
) -> None:
    first, second, third = (launch(number).id for number in (1, 2, 3))
    [event] = emulator.order("maintain", first, second, begins_in=1)
    assert (event["event"], event["detail"], event["notices"]) == ("maintenance", RETIREMENT, 1)
    [body] = queue.take(HEALTH)
    notices = read_notices(json.dumps(body))
    assert [(each.machine, each.kind, each.code) for each in notices] == [
        (first, "maintenance", RETIREMENT),
        (second, "maintenance", RETIREMENT),
    ]
    assert notices[0].begins_at == int(event["deadline"])
    emulator.order("maintain", third, begins_in=0, code="AWS_EC2_INSTANCE_REBOOT_MAINTENANCE_SCHEDULED")
    eventually(lambda: sum(each["event"] == "retired" for each in emulator.events()) == 2)
    assert {life["id"]: life["cause"] for life in emulator.history()} == {
        first: "retired",
        second: "retired",
        third: None,
    }
