"""The proof of a launched machine: what `make_proof` writes is accepted, and everything else is refused."""

import time
from collections.abc import Mapping

import pytest

from leasehold.agent.joining import make_proof
from scheduler.protocol.host_proof import (
    AUTHORIZATION,
    CLUSTER,
    DATE,
    FRESH_SECONDS,
    TOKEN,
    ProofError,
    ProvenMachine,
    check_proof,
    read_arn,
)

IDENTITY = "3f0c6c1be5a94d0f9c6a2f1d7b8e4a50"
REGION = "eu-west-1"


@pytest.fixture
def proof(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ASIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session")
    return make_proof(IDENTITY, REGION)


def check(headers: Mapping[str, object], *, cluster: str = IDENTITY, region: str = REGION, later: float = 0.0) -> str:
    return check_proof(headers, cluster=cluster, region=region, now=time.time() + later)


def test_a_proof_has_the_headers_of_the_machine_only_and_is_accepted(proof: dict[str, str]) -> None:
    assert set(proof) == {AUTHORIZATION, CLUSTER, DATE, TOKEN}
    assert len(check(proof)) == 64


def test_two_proofs_of_different_clusters_differ(proof: dict[str, str]) -> None:
    assert make_proof("another", REGION)[AUTHORIZATION] != proof[AUTHORIZATION]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"host": "sts.evil.example"}, "headers"),
        ({CLUSTER: "another"}, f"headers.{CLUSTER}"),
        ({CLUSTER: None}, f"headers.{CLUSTER}"),
        ({DATE: "yesterday"}, f"headers.{DATE}"),
        ({AUTHORIZATION: "Basic x"}, f"headers.{AUTHORIZATION}"),
        ({TOKEN: "a\nb"}, f"headers.{TOKEN}"),
        ({TOKEN: "x" * 5000}, f"headers.{TOKEN}"),
    ],
)
def test_an_altered_proof_is_refused(proof: dict[str, str], change: dict[str, str | None], path: str) -> None:
    with pytest.raises(ProofError) as refused:
        check({**proof, **change})
    assert refused.value.path == path


@pytest.mark.parametrize("name", [AUTHORIZATION, CLUSTER, DATE, TOKEN])
def test_a_proof_without_one_of_its_headers_is_refused(proof: dict[str, str], name: str) -> None:
    with pytest.raises(ProofError):
        check({key: value for key, value in proof.items() if key != name})


def test_a_signature_that_leaves_the_cluster_out_is_refused(proof: dict[str, str]) -> None:
    proof[AUTHORIZATION] = proof[AUTHORIZATION].replace(f";{CLUSTER}", "")
    with pytest.raises(ProofError, match="covers"):
        check(proof)


def test_a_proof_of_another_service_or_region_is_refused(proof: dict[str, str]) -> None:
    with pytest.raises(ProofError, match="region"):
        check(proof, region="us-east-1")
    proof[AUTHORIZATION] = proof[AUTHORIZATION].replace("/sts/", "/iam/")
    with pytest.raises(ProofError, match="service sts"):
        check(proof)


@pytest.mark.parametrize("later", [FRESH_SECONDS + 5, -FRESH_SECONDS - 5])
def test_an_old_proof_and_one_of_the_future_are_refused(proof: dict[str, str], later: float) -> None:
    with pytest.raises(ProofError, match="cluster time"):
        check(proof, later=later)


def test_an_arn_names_the_machine_and_no_user_or_other_session() -> None:
    arn = "arn:aws:sts::123456789012:assumed-role/leasehold-host/i-0123456789abcdef0"
    assert read_arn(arn) == ProvenMachine("123456789012", "leasehold-host", "i-0123456789abcdef0")
    for other in ("arn:aws:iam::123456789012:user/eve", arn.replace("i-0123456789abcdef0", "eve"), arn + "\n"):
        with pytest.raises(ProofError):
            read_arn(other)
