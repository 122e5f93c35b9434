"""A whole stack on plain `moto_server`, which other people wrote: what Leasehold and its emulator both misunderstand
about EC2 is not hidden there.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import boto3
import pytest

from leasehold import Client
from leasehold.client.discovery import find_running
from leasehold.client.models import Reservation
from leasehold.stack.configuration import find_free_port
from testbed.processes import Process, wait_for
from testbed.stack import ROOT

REGION: Final = "us-east-1"
PARAMETER: Final = "/images/builder"
FILE: Final = """
[aws]
endpoint_url = "{url}"
region = "us-east-1"
access_key_id = "testing"
secret_access_key = "testing"

[pools.linux]
system = "x86_64-linux"
max_slots = 3
idle_scale_down = 1

[[pools.linux.offerings]]
name = "m5.large"
market = "spot"
price = 0.1
resources = {{ cpus = 2, memory_mib = 8192 }}

[pools.linux.ec2]
image = "{image}"
"""


class Moto:
    """`moto_server` as its own program, with clients of EC2 and SSM."""

    def __init__(self, folder: Path) -> None:
        port = find_free_port()
        self.url = f"http://127.0.0.1:{port}"
        # Without thousands of images it starts in a second.
        environment = {**os.environ, "MOTO_EC2_LOAD_DEFAULT_AMIS": "false"}
        self.process = Process("moto", ["moto.server", "--port", str(port)], environment, folder)
        session = boto3.session.Session("testing", "testing", region_name=REGION)
        self.ec2: Any = session.client("ec2", endpoint_url=self.url)
        self.ssm: Any = session.client("ssm", endpoint_url=self.url)

    def make_image(self) -> str:
        """Register an image, let a parameter name it, and return its id."""
        wait_for(lambda: "Running on" in self.process.read_log(), "moto_server")
        image = str(self.ec2.register_image(Name="builder", RootDeviceName="/dev/xvda")["ImageId"])
        self.ssm.put_parameter(Name=PARAMETER, Value=image, Type="String")
        return image

    def machines(self) -> list[dict[str, Any]]:
        """Return the instances as EC2 describes them."""
        found = self.ec2.describe_instances()["Reservations"]
        return [instance for reservation in found for instance in reservation["Instances"]]


@pytest.fixture
def moto(tmp_path: Path) -> Iterator[Moto]:
    server = Moto(tmp_path)
    yield server
    server.process.stop()


@pytest.mark.timeout(400)
def test_a_stack_on_plain_moto_leases_machines_and_ends_them(moto: Moto, tmp_path: Path) -> None:
    """One machine is launched by itself, and two by a fleet."""
    image = moto.make_image()
    (tmp_path / "leasehold.toml").write_text(FILE.format(url=moto.url, image=f"ssm:{PARAMETER}"))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LEASEHOLD_", "AWS_"))}
    environment = {**kept, "PYTHONPATH": str(ROOT), "AWS_EC2_METADATA_DISABLED": "true"}
    up = Process("up", ["leasehold.cli", "up"], environment, tmp_path)
    try:
        running = wait_for(lambda: _find(tmp_path, up), "the stack", 200)
        with Client(running.broker_url) as client:
            leased = [lease_machines(client, "alone"), lease_machines(client, "one", "two")]
            machines = moto.machines()
            found = {lease.instance_id for rows in leased for row in rows for lease in row.leases}
            assert found == {machine["InstanceId"] for machine in machines}
            assert len(found) == 3
            assert {(each["ImageId"], each["InstanceLifecycle"]) for each in machines} == {(image, "spot")}
            assert {"leasehold:batch" in read_tags(each) for each in machines} == {False, True}
            for rows in leased:
                client.release_many({row.id: row.token for row in rows})
        wait_for(
            lambda: {each["State"]["Name"] for each in moto.machines()} == {"terminated"}, "the end of the machines"
        )
        assert len(moto.machines()) == 3
    finally:
        up.stop()


def lease_machines(client: Client, *names: str) -> list[Reservation]:
    client.reserve_many([{"id": name, "system": "x86_64-linux", "resources": {"cpus": 2}} for name in names])
    return [client.wait(name, timeout=60) for name in names]


def read_tags(machine: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in machine["Tags"]}


def _find(folder: Path, up: Process) -> Any:
    assert up.is_alive, up.read_log()
    found = find_running(folder)
    return found if found is not None and found.phase == "running" else None
