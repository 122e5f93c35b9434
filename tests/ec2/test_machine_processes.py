"""Instances that the emulator plays as processes: their user data runs, they prove their identity, and nothing of them
outlives them.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
from botocore.exceptions import ClientError

from testbed.guarding import Guarded
from testbed.processes import wait_for

SECRET = "s" * 40
SCRIPT = """#!/bin/sh
env > environment
echo "$$" > script.pid
setsid sh -c 'echo "$$" > hidden.pid; exec env -i sleep 600' &
exec sleep 600
"""


class PlayingEmulator(NamedTuple):
    """An emulator in a process of its own: a process of the tests can have only one."""

    url: str


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[PlayingEmulator]:
    with start_emulator(tmp_path) as found:
        yield found


@contextmanager
def start_emulator(folder: Path) -> Iterator[PlayingEmulator]:
    environment = {**os.environ, "EC2_EMULATOR_SECRET": SECRET, "TMPDIR": str(folder)}
    words = [sys.executable, "-m", "leasehold_emulator", "--port", "0", "--run-user-data"]
    with Guarded(words, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        yield PlayingEmulator(line.split()[-1])
        process.terminate()
        process.wait(30)


def open_ec2(emulator: PlayingEmulator) -> Any:
    return boto3.client(
        "ec2",
        region_name="us-east-1",
        endpoint_url=emulator.url,
        aws_access_key_id="emulator",
        aws_secret_access_key=SECRET,
    )


def launch(emulator: PlayingEmulator, script: str) -> str:
    found = open_ec2(emulator).run_instances(
        ImageId="ami-1", InstanceType="m5.large", MinCount=1, MaxCount=1, UserData=script
    )
    return str(found["Instances"][0]["InstanceId"])


def find_folder(tmp_path: Path, machine: str) -> Path:
    return wait_for(lambda: next(iter(tmp_path.glob(f"*/{machine}/hidden.pid")), None), "user data").parent


def read_environment(folder: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (folder / "environment").read_text().splitlines() if "=" in line)


def is_alive(path: Path) -> bool:
    try:
        os.kill(int(path.read_text()), 0)
    except ProcessLookupError:
        return False
    return True


def test_a_machine_runs_its_user_data_and_leaves_nothing_when_it_is_terminated(
    emulator: PlayingEmulator, tmp_path: Path
) -> None:
    folder = find_folder(tmp_path, machine := launch(emulator, SCRIPT))
    assert is_alive(folder / "script.pid")
    assert is_alive(folder / "hidden.pid")
    open_ec2(emulator).terminate_instances(InstanceIds=[machine])
    wait_for(lambda: not (is_alive(folder / "script.pid") or is_alive(folder / "hidden.pid")) or None, "the end")


def test_a_machine_proves_to_sts_which_instance_it_is(emulator: PlayingEmulator, tmp_path: Path) -> None:
    folder = find_folder(tmp_path, machine := launch(emulator, SCRIPT))
    environment = read_environment(folder)
    sts = partial(
        boto3.client,
        "sts",
        region_name="us-east-1",
        endpoint_url=environment["AWS_ENDPOINT_URL_STS"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_session_token=environment["AWS_SESSION_TOKEN"],
    )
    found = sts(aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"]).get_caller_identity()
    assert found["Arn"] == f"arn:aws:sts::123456789012:assumed-role/emulated-host/{machine}"
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        sts(aws_secret_access_key="wrong").get_caller_identity()


def test_user_data_that_is_no_script_is_not_run(emulator: PlayingEmulator, tmp_path: Path) -> None:
    launch(emulator, "echo no")
    folder = find_folder(tmp_path, launch(emulator, SCRIPT))
    assert len(list(folder.parent.iterdir())) == 1
