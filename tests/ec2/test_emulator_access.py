"""An emulator with a secret serves only requests that are signed with it or that have it as password."""

import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, Final

import pytest
from botocore.exceptions import ClientError
from leasehold_emulator import EmulatorServer

from scheduler.ports import CloudError
from tests.ec2.conftest import REGION
from workers.ec2.clients import Ec2Access, make_client, make_queue_client
from workers.ec2.errors import cloud_errors

SECRET: Final = "correct horse/battery+staple="


@pytest.fixture(scope="module")
def closed(server: EmulatorServer) -> Iterator[EmulatorServer]:
    """Yield the emulator of all tests behind another port and a secret, without faults of other tests."""
    server.middleware.control.faults.replace((), 0.0)
    found = EmulatorServer("127.0.0.1", 0, server.middleware, SECRET).start()
    yield found
    found.stop()


def connect(server: EmulatorServer, secret: str) -> dict[str, Any]:
    return {"region": REGION, "endpoint_url": server.url, "access_key_id": "emulator", "secret_access_key": secret}


def ask(url: str, method: str, headers: dict[str, str], body: bytes | None = None) -> int:
    """Return the status of the answer."""
    request = urllib.request.Request(url, body, headers, method=method)  # noqa: S310 - loopback
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - loopback
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def log_in(password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(f'leasehold:{password}'.encode()).decode()}"}


def test_what_is_signed_with_the_secret_is_served(closed: EmulatorServer) -> None:
    client = make_client(Ec2Access(**connect(closed, SECRET)))
    assert client.describe_instances(Filters=[{"Name": "tag:a b", "Values": ["c/d=é"]}])["Reservations"] == []
    queues = make_queue_client(Ec2Access(**connect(closed, SECRET)))
    url = queues.create_queue(QueueName="signed")["QueueUrl"]
    queues.send_message(QueueUrl=url, MessageBody="with spaces & ü")
    assert [each["Body"] for each in queues.receive_message(QueueUrl=url)["Messages"]] == ["with spaces & ü"]


@pytest.mark.parametrize("secret", ["emulator", SECRET[:-1]])
def test_what_is_signed_with_another_secret_is_refused(closed: EmulatorServer, secret: str) -> None:
    with pytest.raises(CloudError, match="AuthFailure"), cloud_errors():
        make_client(Ec2Access(**connect(closed, secret))).describe_instances()
    with pytest.raises(ClientError, match="401"):
        make_queue_client(Ec2Access(**connect(closed, secret))).create_queue(QueueName="other")


def test_the_control_api_needs_the_secret_as_a_password(closed: EmulatorServer) -> None:
    for login in ({}, log_in("emulator"), log_in(""), {"Authorization": "Basic !"}, {"Authorization": "Bearer x"}):
        for method, page in (("GET", "state"), ("GET", "calls"), ("POST", "reset"), ("POST", "health")):
            assert ask(f"{closed.url}/_leasehold/{page}", method, login) == 401
        assert ask(f"{closed.url}/moto-api/reset", "POST", login) == 401
    assert ask(f"{closed.url}/_leasehold/state", "GET", log_in(SECRET)) == 200
    assert ask(f"{closed.url}/_leasehold/settings", "PUT", log_in(SECRET), b'{"boot_seconds": 0}') == 200


def test_health_needs_no_password(closed: EmulatorServer) -> None:
    assert ask(f"{closed.url}/_leasehold/health", "GET", {}) == 200


@pytest.mark.parametrize(
    "header",
    [
        "",
        "AWS4-HMAC-SHA256 ",
        "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=0",
        "AWS4-HMAC-SHA256 Credential=a/20261122/us-east-1/ec2/aws4_request, SignedHeaders=, Signature=",
        "AWS4-HMAC-SHA256 Credential=a/20261122/us-east-1/ec2/aws4_request, SignedHeaders=host;nothing, Signature=é",
    ],
)
def test_a_signature_that_is_none_is_refused(closed: EmulatorServer, header: str) -> None:
    body = b"Action=DescribeInstances&Version=2016-11-15"
    for headers in ({}, {"X-Amz-Date": "20261122T000000Z"}):
        sent = {**headers, "Authorization": header.encode().decode("latin-1")}
        assert ask(f"{closed.url}/", "POST", sent, body) == 401
