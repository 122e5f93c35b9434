"""STS names the machine of a proof, on the emulator: a real request over HTTP with a signature that is checked."""

import asyncio
from pathlib import Path

import pytest

from leasehold.agent.joining import make_proof
from scheduler.protocol.host_proof import CLUSTER, ProofError, ProvenMachine
from tests.ec2.test_machine_processes import SCRIPT, PlayingEmulator, emulator, find_folder, launch, read_environment
from workers.ec2.identity import Sts, StsError, find_sts_url

__all__ = ["emulator"]


@pytest.fixture
def machine(emulator: PlayingEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A played machine; this process has its credentials."""
    name = launch(emulator, SCRIPT)
    for key, value in read_environment(find_folder(tmp_path, name)).items():
        if key.startswith("AWS_"):
            monkeypatch.setenv(key, value)
    return name


def test_the_machine_that_signed_is_found(emulator: PlayingEmulator, machine: str) -> None:
    found = asyncio.run(Sts("us-east-1", emulator.url).find_machine(make_proof("c-1", None)))
    assert found == ProvenMachine("123456789012", "emulated-host", machine)


def test_a_proof_with_a_header_that_was_changed_is_refused(emulator: PlayingEmulator, machine: str) -> None:
    proof = make_proof("c-1", None) | {CLUSTER: "c-2"}
    with pytest.raises(ProofError, match="a signature that AWS accepts"):
        asyncio.run(Sts("us-east-1", emulator.url).find_machine(proof))
    assert machine


def test_an_sts_that_does_not_answer_is_no_refusal() -> None:
    with pytest.raises(StsError, match="cannot be reached"):
        asyncio.run(Sts("us-east-1", "http://127.0.0.1:1/").find_machine({}))


@pytest.mark.parametrize(
    ("region", "url"),
    [("eu-west-1", "https://sts.eu-west-1.amazonaws.com/"), ("cn-north-1", "https://sts.cn-north-1.amazonaws.com.cn/")],
)
def test_the_address_is_that_of_the_region(region: str, url: str) -> None:
    assert find_sts_url(region, None) == url
