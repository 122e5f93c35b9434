"""What each implementation of the port `Fleet` promises about changes of several machines, of which one is refused."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from scheduler.ports import CloudError, Fleet
from scheduler.simulation.cloud import EventQueue, SimulatedCloud
from scheduler.simulation.cloud_documents import CloudDocument
from tests.ec2.conftest import Launch, some_rules
from tests.operations.harness import CountingFleet
from workers.ec2.fleet import Ec2Fleet

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

UNKNOWN = "i-0123456789abcdef0"
ON_DEMAND: list[dict[str, Any]] = [{"name": "c5.large", "market": "on-demand"}]


class Case(NamedTuple):
    """A fleet with machines, one of its changes, the machines that it refuses, and the code of the refusal."""

    fleet: Fleet
    change: Callable[[Sequence[str]], Mapping[str, CloudError]]
    machines: list[str]
    refused: str
    code: str
    states: set[str]
    """The states of a machine that was changed."""


def of_ec2(request: pytest.FixtureRequest, name: str) -> Case:
    """EC2 protects machines from their end and their stop, and refuses to start one that runs nowhere."""
    fleet: Ec2Fleet = request.getfixturevalue("fleet")
    client: EC2Client = request.getfixturevalue("client")
    launch: Launch = request.getfixturevalue("launch")
    ids = [launch(number, some_rules(offerings=ON_DEMAND)).id for number in range(1, 7)]
    attribute: dict[str, Any] = {
        "terminate": {"DisableApiTermination": {"Value": True}},
        "stop": {"DisableApiStop": {"Value": True}},
    }[name]
    client.modify_instance_attribute(InstanceId=ids[2], **attribute)
    states = {"terminate": {"stopping", "terminated"}, "stop": {"stopping", "stopped"}}[name]
    return Case(fleet, getattr(fleet, name), ids, ids[2], "OperationNotPermitted", states)


def of_tests(name: str) -> Case:
    fleet = CountingFleet()
    ids = [f"i-{number}" for number in range(6)]
    for each in ids:
        fleet.appear(each, state="stopped" if name == "start" else "running")
    error = CloudError("state", "OperationNotPermitted", "no")
    fleet.protected, fleet.refused = {ids[2]: error}, {ids[2]: error}
    states = {"terminate": {"terminated"}, "stop": {"stopped"}, "start": {"running"}}[name]
    return Case(fleet, getattr(fleet, name), ids, ids[2], error.code, states)


def of_simulation() -> Case:
    """The simulated cloud refuses starts only."""
    queue = EventQueue(0.0)
    cloud = SimulatedCloud(queue, CloudDocument())
    ids = [f"i-{number}" for number in range(6)]
    for each in ids:
        cloud.put(each, "", each, 0.0, 0.0)
        cloud.put_stopped(each)
    cloud.verdicts[ids[2]] = "capacity"
    return Case(cloud, cloud.start, ids, ids[2], "capacity", {"running", "pending"})


CASES = ["ec2 terminate", "ec2 stop", "tests terminate", "tests stop", "tests start", "simulation start"]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    kind, name = request.param.split()
    return of_ec2(request, name) if kind == "ec2" else of_tests(name) if kind == "tests" else of_simulation()


def test_a_refused_machine_is_in_the_answer_and_the_others_are_changed(case: Case) -> None:
    answer = case.change([*case.machines, UNKNOWN])
    assert {name: error.code for name, error in answer.items()} == {case.refused: case.code}
    found = case.fleet.describe(case.machines)
    changed = {name for name, machine in found.items() if machine.state in case.states}
    assert changed == {*case.machines} - {case.refused}


def test_a_repeated_change_of_the_others_is_accepted(case: Case) -> None:
    others = [name for name in case.machines if name != case.refused]
    for _ in range(2):
        assert case.change(others) == {}
