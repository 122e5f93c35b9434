"""One emulator for all tests of EC2, over HTTP, with a fleet on it. AWS settings of the user are not read."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import boto3
import msgspec
import pytest
from botocore.config import Config
from leasehold_emulator import EmulatorServer, EmulatorSettings, make_server

from scheduler.model.rules import Rules, read_rules
from scheduler.model.slots import Machine
from scheduler.ports import LaunchOrder
from testbed.servers import open_redis, redis_client, redis_server, redis_url
from workers.ec2.clients import Ec2Access, make_client
from workers.ec2.fleet import Ec2Fleet, make_fleet

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

__all__ = ["open_redis", "redis_client", "redis_server", "redis_url"]

IMAGE = "ami-04681a1dbd79675a5"
REGION = "us-east-1"


class Emulator:
    """The emulator as seen from outside: its URL and its control API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, method: str, path: str, document: object = None) -> tuple[int, Any]:
        """Return status and JSON of an answer of the control API."""
        body = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(f"{self.url}/_leasehold/{path}", body, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - our own loopback
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def steer(self, **settings: object) -> None:
        status, answer = self.ask("PUT", "settings", settings)
        assert status == 200, answer

    def set_fault(self, **rule: object) -> None:
        status, answer = self.ask("PUT", "faults", [rule])
        assert status == 200, answer

    def order(self, what: str, *instances: str, **order: object) -> list[dict[str, Any]]:
        """Send an order, like interrupt or lose, and return the resulting events."""
        status, answer = self.ask("POST", what, {"instances": list(instances), **order})
        assert status == 200, answer
        events: list[dict[str, Any]] = answer["events"]
        return events

    def events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", "events")[1]["events"]
        return [event for event in found if event["event"] != "reset"]

    def history(self) -> list[dict[str, Any]]:
        """Return all instances since the last reset."""
        found: list[dict[str, Any]] = self.ask("GET", "history")[1]["instances"]
        return found

    def calls(self, action: str | None = None) -> list[dict[str, Any]]:
        records = self.ask("GET", "calls")[1]["calls"]
        return [record for record in records if action in {None, record["action"]}]

    def instances(self) -> list[dict[str, Any]]:
        """Return the instances that EC2 still describes."""
        found: list[dict[str, Any]] = self.ask("GET", "state")[1]["instances"]
        return found


@pytest.fixture(scope="session", autouse=True)
def _no_settings_of_aws() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", "/dev/null")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        yield


_in_use: list[EmulatorServer] = []
"""The emulator of this process, once for each fixture that uses it now."""


@pytest.fixture(scope="session")
def server(_no_settings_of_aws: None) -> Iterator[EmulatorServer]:
    """The emulator of this process, which can have only one. Test files of other folders import this fixture, and each
    import is a fixture of its own.
    """
    _in_use.append(_in_use[0] if _in_use else make_server(region=REGION).start())
    yield _in_use[-1]
    server = _in_use.pop()
    if not _in_use:
        server.stop()


@pytest.fixture
def emulator(server: EmulatorServer) -> Emulator:
    emulator = Emulator(server.url)
    emulator.steer(**EmulatorSettings().model_dump(mode="json"))
    assert emulator.ask("POST", "reset")[0] == 200
    return emulator


@pytest.fixture(scope="session")
def access(server: EmulatorServer) -> Ec2Access:
    return Ec2Access(region=REGION, endpoint_url=server.url, access_key_id="testing", secret_access_key="testing")


@pytest.fixture(scope="session")
def fleet_of_all_tests(access: Ec2Access) -> Ec2Fleet:
    return make_fleet("blue", access)


@pytest.fixture
def fleet(fleet_of_all_tests: Ec2Fleet, emulator: Emulator) -> Ec2Fleet:
    """Return the fleet of cluster `blue` on a reset emulator."""
    return fleet_of_all_tests


@pytest.fixture(scope="session")
def client(server: EmulatorServer) -> "EC2Client":
    return make_client(
        Ec2Access(region=REGION, endpoint_url=server.url, access_key_id="testing", secret_access_key="testing")
    )


@pytest.fixture(scope="session")
def plain_client(server: EmulatorServer) -> "EC2Client":
    session = boto3.session.Session("testing", "testing", region_name=REGION)
    return session.client("ec2", endpoint_url=server.url, config=Config(retries={"total_max_attempts": 1}))


@pytest.fixture
def plain(emulator: Emulator, plain_client: "EC2Client") -> "EC2Client":
    """Return a client without repeats, for a reset emulator."""
    return plain_client


def some_rules(ec2: dict[str, Any] | None = None, **pool: object) -> Rules:
    """Return rules with one pool, `linux`, with one spot offering by default."""
    document = {
        "system": "x86_64-linux",
        "max_slots": 9,
        "offerings": [{"name": "c5.large"}],
        "ec2": {"image": IMAGE} if ec2 is None else ec2,
        **pool,
    }
    return read_rules({"pools": {"linux": document}})


def an_order(number: int = 1, **changes: object) -> LaunchOrder:
    """Return the order to launch slot `linux-NUMBER`."""
    order = LaunchOrder(
        slot=f"linux-{number}", pool="linux", launch_id=f"launch-{number}", generation=1, offerings=("c5.large",)
    )
    if "offering" in changes:
        key = changes.pop("offering")
        changes["offerings"] = (key,) if key else ()
    return msgspec.structs.replace(order, **changes)


def launch_one(fleet: Ec2Fleet, request: Mapping[str, Any]) -> Machine:
    """Send the request for one machine. Raises the refusal of the answer as CloudError."""
    answer = fleet.launch(request)
    if not answer.machines:
        raise answer.refusals[-1].to_error(is_after_unclear=answer.is_after_unclear)
    return answer.machines[0]


Launch = Callable[..., Machine]


@pytest.fixture
def launch(fleet: Ec2Fleet) -> Launch:
    """Return a function that launches a machine: `launch(number=1, rules=some_rules(), **changes of the order)`."""

    def act(number: int = 1, rules: Rules | None = None, **changes: object) -> Machine:
        return launch_one(fleet, fleet.freeze(an_order(number, **changes), rules or some_rules()))

    return act
