"""The emulator itself: control, log, start and end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.exceptions import ClientError
from leasehold_emulator import EmulatorServer
from leasehold_emulator.__main__ import main
from leasehold_emulator.calls import Call, read_call
from leasehold_emulator.faults import FaultTable
from leasehold_emulator.settings import FaultRule, load_settings

from scheduler.model.validation import InvalidInputError
from scheduler.ports import CloudError
from testbed.guarding import Guarded
from tests.ec2.conftest import IMAGE, REGION, Emulator, Launch, an_order, launch_one, some_rules
from tests.ec2.test_emulator_limits import run
from workers.ec2.clients import Ec2Access
from workers.ec2.fleet import Ec2Fleet, make_fleet

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until the condition holds, for twenty seconds at most."""
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline


def a_call(
    action: str = "RunInstances", *, invocation: str | None = None, region: str = "eu-west-1", **parameters: str
) -> Call:
    body = "&".join(f"{key}={value}" for key, value in {"Action": action, **parameters}.items())
    environ = {
        "HTTP_AUTHORIZATION": f"AWS4-HMAC-SHA256 Credential=x/20261101/{region}/ec2/aws4_request, …",
        "HTTP_AMZ_SDK_INVOCATION_ID": invocation,
    }
    return read_call(environ, body.encode())


def test_the_call_log_has_every_call(launch: Launch, fleet: Ec2Fleet, emulator: Emulator, client: "EC2Client") -> None:
    before = time.time()
    machine = launch()
    launch()
    emulator.set_fault(code="VcpuLimitExceeded", market="spot")
    with pytest.raises(CloudError):
        launch(2)
    fleet.terminate([machine.id])
    client.describe_subnets()
    calls = emulator.calls()
    launched = {
        "action": "RunInstances",
        "region": REGION,
        "types": ["c5.large"],
        "zones": ["us-east-1a"],
        "market": "spot",
        "asked": 1,
        "attempt": 1,
        "lost": False,
        "faults": [],
    }
    asked = {**launched, "types": [], "zones": [], "market": None, "asked": None, "token": None, "replayed": False}
    went_well = {"status": 200, "code": None}
    ours = {**went_well, "instances": [machine.id]}
    assert [{key: call[key] for key in call if key not in {"number", "time"}} for call in calls] == [
        {**launched, **ours, "token": "launch-1.1", "replayed": False},
        {**launched, **ours, "token": "launch-1.1", "replayed": True},
        {
            **launched,
            "token": "launch-2.1",
            "replayed": False,
            "status": 400,
            "code": "VcpuLimitExceeded",
            "instances": [],
            "faults": ["place:VcpuLimitExceeded"],
        },
        {**asked, **ours, "action": "TerminateInstances"},
        {**asked, **went_well, "action": "DescribeSubnets", "instances": []},
    ]
    numbers = [call["number"] for call in calls]
    assert numbers == list(range(numbers[0], numbers[0] + 5))
    assert all(before <= call["time"] <= time.time() for call in calls)
    assert emulator.ask("GET", f"calls?after={numbers[2]}")[1]["calls"] == calls[3:]


def test_copies_of_a_launch_at_once_make_one_machine(fleet: Ec2Fleet, emulator: Emulator) -> None:
    request = fleet.freeze(an_order(), some_rules())
    with ThreadPoolExecutor(8) as threads:
        machines = list(threads.map(lambda _: launch_one(fleet, request), range(16)))
    assert len({machine.id for machine in machines}) == 1
    assert [call["replayed"] for call in emulator.calls()] == [False] + [True] * 15


def test_a_known_token_is_answered_even_if_the_quota_is_used_up(launch: Launch, emulator: Emulator) -> None:
    machine = launch()
    emulator.set_fault(code="InsufficientInstanceCapacity")
    assert launch().id == machine.id
    emulator.set_fault(code="AuthFailure")
    with pytest.raises(CloudError, match="AuthFailure"):
        launch()


def test_a_token_that_was_refused_may_be_used_again(launch: Launch, emulator: Emulator) -> None:
    emulator.set_fault(code="VcpuLimitExceeded", count=1)
    with pytest.raises(CloudError):
        launch()
    assert launch().launch_id == "launch-1"


def test_the_token_of_a_refused_launch_is_taken_for_other_parameters(plain: "EC2Client", emulator: Emulator) -> None:
    emulator.set_fault(code="VcpuLimitExceeded", count=1)
    with pytest.raises(ClientError, match="VcpuLimitExceeded"):
        run(plain, ClientToken="t")
    with pytest.raises(ClientError, match="IdempotentParameterMismatch"):
        run(plain, kind="m5.large", ClientToken="t")
    assert emulator.instances() == []
    assert run(plain, ClientToken="t") == run(plain, kind="m5.large", ClientToken="u") == 1


def test_the_token_of_terminated_machines_is_refused(plain: "EC2Client", emulator: Emulator) -> None:
    run(plain, 2, 2, ClientToken="t")
    first, second = (life["id"] for life in emulator.history())
    plain.terminate_instances(InstanceIds=[first])
    assert run(plain, 2, 2, ClientToken="t") == 2
    plain.terminate_instances(InstanceIds=[second])
    with pytest.raises(ClientError, match="IdempotentInstanceTerminated"):
        run(plain, 2, 2, ClientToken="t")
    assert len(emulator.instances()) == 2


def test_the_token_of_a_machine_that_shuts_down_gives_its_answer_again(plain: "EC2Client", emulator: Emulator) -> None:
    emulator.steer(terminate_seconds=60)
    run(plain, ClientToken="t")
    plain.terminate_instances(InstanceIds=[emulator.history()[0]["id"]])
    assert run(plain, ClientToken="t") == 1
    assert len(emulator.instances()) == 1


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "UnauthorizedOperation"])
def test_a_launch_that_is_not_looked_at_leaves_its_token_free(
    code: str, plain: "EC2Client", emulator: Emulator
) -> None:
    emulator.set_fault(code=code, count=1)
    with pytest.raises(ClientError, match=code):
        run(plain, ClientToken="t")
    assert run(plain, kind="m5.large", ClientToken="t") == 1


@pytest.mark.parametrize(
    ("rule", "meets"),
    [
        ({}, True),
        ({"type": "c5.large"}, True),
        ({"type": "c5.xlarge"}, False),
        ({"zone": "us-east-1a"}, True),
        ({"zone": "us-east-1b"}, False),
        ({"market": "spot"}, True),
        ({"market": "on-demand"}, False),
        ({"type": "c5.large", "zone": "us-east-1a", "market": "spot"}, True),
        ({"action": "RunInstances"}, True),
        ({"action": "any"}, True),
        ({"action": "TerminateInstances"}, False),
    ],
)
def test_a_fault_applies_to_the_calls_that_it_names(
    rule: dict[str, object], meets: bool, launch: Launch, emulator: Emulator
) -> None:
    emulator.set_fault(code="UnfulfillableCapacity", **rule)
    if meets:
        with pytest.raises(CloudError, match="UnfulfillableCapacity"):
            launch()
    else:
        launch()


def test_a_fault_ends_after_its_count_or_its_time() -> None:
    table = FaultTable()
    counted, timed = FaultRule(code="AuthFailure", count=2), FaultRule(code="PendingVerification", seconds=10)
    table.replace([counted, timed], now=100)
    calls = [a_call(invocation=str(number)) for number in range(4)]
    assert table.take("request", calls[0], 101) == counted
    # boto3's second attempt of the same call
    assert table.take("request", calls[0], 102) == counted
    assert table.take("request", calls[1], 103) == counted
    assert table.take("request", calls[2], 104) == timed
    assert table.take("request", calls[3], 110) is None
    assert list(table.rules(110)) == [counted]


def test_a_fault_without_an_action_applies_to_launches_only() -> None:
    table = FaultTable()
    table.replace([FaultRule(code="AuthFailure")], now=0)
    assert table.take("request", a_call("DescribeInstances"), 1) is None
    table.add([FaultRule(code="InternalError", action="any")], now=0)
    found = table.take("request", a_call("DescribeInstances"), 1)
    assert found is not None
    assert found.http_status == 500


def test_the_control_api_shows_and_changes_the_settings(launch: Launch, emulator: Emulator) -> None:
    assert emulator.ask("GET", "health") == (200, {"status": "ok", "interruption_queue": None})
    emulator.steer(boot_seconds="1m", address="127.0.0.1")
    assert emulator.ask("POST", "faults", {"code": "AuthFailure", "count": 1})[0] == 200
    state = emulator.ask("GET", "state")[1]
    assert state["settings"]["boot_seconds"] == 60
    assert state["settings"]["faults"] == [{"code": "AuthFailure", "count": 1}]
    assert emulator.ask("PUT", "faults", [])[1]["faults"] == []
    assert launch().address == "127.0.0.1"
    [instance] = emulator.instances()
    assert (instance["state"], instance["type"], instance["market"]) == ("pending", "c5.large", "spot")
    assert instance["tags"]["leasehold:slot"] == "linux-1"


@pytest.mark.parametrize(
    ("method", "path", "document", "status", "message"),
    [
        ("PUT", "settings", {"boot_second": 1}, 400, 'boot_second: expected a known key (did you mean "boot'),
        ("PUT", "settings", {"boot_seconds": -1}, 400, "boot_seconds: expected a duration"),
        ("PUT", "settings", [], 400, "expected a table"),
        ("POST", "faults", {"code": "X", "market": "stock"}, 400, "faults[0].market: expected one of"),
        ("PUT", "faults", {"code": "X"}, 400, "faults: expected a list"),
        ("GET", "nonsense", None, 404, "no such resource: GET /_leasehold/nonsense"),
        ("DELETE", "state", None, 404, "no such resource"),
    ],
)
def test_a_wrong_control_request_is_refused_by_name(
    emulator: Emulator, method: str, path: str, document: object, status: int, message: str
) -> None:
    before = emulator.ask("GET", "state")
    answered, answer = emulator.ask(method, path, document)
    assert answered == status
    assert message in answer["error"]
    assert emulator.ask("GET", "state") == before


def test_reset_removes_everything_except_the_delays(launch: Launch, emulator: Emulator) -> None:
    emulator.steer(boot_seconds=5)
    first = launch()
    emulator.set_fault(code="AuthFailure")
    assert emulator.ask("POST", "reset")[1]["boot_seconds"] == 5
    assert (emulator.instances(), emulator.calls()) == ([], [])
    assert launch().id != first.id


def test_calls_of_different_regions_do_not_mix(access: Ec2Access, launch: Launch, emulator: Emulator) -> None:
    launch()
    other = make_fleet(
        "blue",
        Ec2Access(
            region="eu-west-1", endpoint_url=access.endpoint_url, access_key_id="testing", secret_access_key="testing"
        ),
    )
    assert list(other.sweep()) == []
    assert launch_one(other, other.freeze(an_order(), some_rules())).zone == "eu-west-1a"
    assert [instance["region"] for instance in emulator.instances()] == ["us-east-1", "eu-west-1"]


def test_other_services_reach_moto(access: Ec2Access) -> None:
    session = boto3.session.Session("testing", "testing", region_name=REGION)
    sqs = session.client("sqs", endpoint_url=access.endpoint_url)
    queue = sqs.create_queue(QueueName="interruptions")["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="two minutes")
    assert [found["Body"] for found in sqs.receive_message(QueueUrl=queue)["Messages"]] == ["two minutes"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("state.toml", "boot_seconds = ", "state.toml: expected valid TOML"),
        ("state.json", "{", "state.json: expected valid JSON"),
        ("state.json", "[]", "state.json: expected a table"),
        ("state.toml", 'faults = [{ type = "x" }]', "faults[0].code: expected a value"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        load_settings(tmp_path / name)
    assert message in str(caught.value)


class Process:
    """The emulator as a process that reads its settings from a file."""

    def __init__(self, folder: Path) -> None:
        self.file, self.log = folder / "state.toml", folder / "calls.jsonl"
        self.file.write_text("boot_seconds = 60\n")
        options = ["--port", "0", "--state-file", str(self.file), "--call-log", str(self.log)]
        self.process = Guarded(
            [sys.executable, "-m", "leasehold_emulator", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "AWS_EC2_METADATA_DISABLED": "true"},
        )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline().decode()
        assert ready.startswith("leasehold: EC2 emulator at http://127.0.0.1:"), self.process.communicate()
        self.emulator = Emulator(ready.rpartition(" ")[2].strip())

    def write(self, text: str) -> None:
        """Replace the settings file at once, so that the emulator reads no half of it."""
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.file)

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Send this signal; return status, standard output and standard error."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out.decode(), err.decode()


@pytest.fixture
def process(tmp_path: Path, _no_settings_of_aws: None) -> Iterator[Process]:
    process = Process(tmp_path)
    yield process
    if process.process.poll() is None:
        process.end()


def test_a_process_reads_its_file_and_writes_its_log(process: Process) -> None:
    access = Ec2Access(
        region=REGION, endpoint_url=process.emulator.url, access_key_id="testing", secret_access_key="testing"
    )
    fleet = make_fleet("blue", access)
    rules = some_rules({"image": IMAGE})
    assert launch_one(fleet, fleet.freeze(an_order(1), rules)).id
    assert [instance["state"] for instance in process.emulator.instances()] == ["pending"]

    process.write('[[faults]]\ncode = "AuthFailure"\n')
    with pytest.raises(CloudError, match="AuthFailure"):
        launch_one(fleet, fleet.freeze(an_order(2), rules))

    process.write("faults = nonsense that is no TOML\n")
    eventually(lambda: process.emulator.ask("GET", "state")[1]["file_error"] is not None)
    with pytest.raises(CloudError, match="AuthFailure"):
        launch_one(fleet, fleet.freeze(an_order(2), rules))

    process.write("")
    assert launch_one(fleet, fleet.freeze(an_order(2), rules)).id
    lines = [json.loads(line) for line in process.log.read_text().splitlines()]
    assert lines == process.emulator.calls()
    assert [line["code"] for line in lines] == [None, "AuthFailure", "AuthFailure", None]
    assert process.end() == (0, "", "")


def test_ctrl_c_ends_a_process_quietly(process: Process) -> None:
    assert process.end(signal.SIGINT) == (0, "", "")


def test_a_failed_start_is_reported_in_one_line(
    server: EmulatorServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = server.url.rpartition(":")[2]
    assert main(["--port", port]) == 1
    stated = capsys.readouterr().err
    assert stated.startswith("leasehold: ")
    assert "Address already in use" in stated
    assert stated.count("\n") == 1

    broken = tmp_path / "broken.toml"
    broken.write_text("boot_secs = 1")
    assert main(["--port", "0", "--state-file", str(broken)]) == 2
    assert capsys.readouterr().err == (
        'leasehold: boot_secs: expected a known key (did you mean "boot_seconds"?), got "boot_secs"\n'
    )
    assert main(["--port", "0", "--state-file", str(tmp_path / "absent.toml")]) == 1
    assert "absent.toml" in capsys.readouterr().err
