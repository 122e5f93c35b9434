"""boto3 clients with a limit for every wait: connect 3 s, read 15 s (launches 60 s), 3 attempts.

They sign with the time of AWS (`workers/ec2/signing_time.py`).
"""

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import boto3
import botocore.session
from botocore.config import Config
from botocore.loaders import Loader

from workers.ec2.errors import cloud_errors
from workers.ec2.signing_time import AwsClock

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_sqs import SQSClient

CONNECT_SECONDS: Final = 3.0
READ_SECONDS: Final = 15.0
LAUNCH_READ_SECONDS: Final = 60.0
LONGEST_POLL: Final = 20
"""Longest wait of an SQS call for a message, in seconds."""
ATTEMPTS: Final = 3
CONNECTIONS: Final = 32
"""Connections of one client: the threads of a launch or health worker share it."""


def make_client(
    *,
    region: str | None,
    endpoint_url: str | None = None,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    profile: str | None = None,
    read_seconds: float = READ_SECONDS,
) -> "EC2Client":
    """Return an EC2 client. Without keys boto3's own chain finds the credentials (environment, profile, role);
    `profile` names a profile of its configuration.

    Raises CloudError (auth, misconfigured) if boto3 cannot make one. The client is thread-safe.
    """
    keys = _keys(access_key_id, secret_access_key, session_token)
    with cloud_errors():
        session = _open_session(region, profile)
        client = session.client("ec2", endpoint_url=endpoint_url, config=_bounded(read_seconds), **keys)
    AwsClock().guard(client)
    return client


def make_queue_client(
    *,
    region: str | None,
    endpoint_url: str | None = None,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    session_token: str | None = None,
    profile: str | None = None,
) -> "SQSClient":
    """Return an SQS client, like `make_client`. Its read timeout is longer by the time of a long poll."""
    keys, config = _keys(access_key_id, secret_access_key, session_token), _bounded(READ_SECONDS + LONGEST_POLL)
    with cloud_errors():
        client = _open_session(region, profile).client("sqs", endpoint_url=endpoint_url, config=config, **keys)
    AwsClock().guard(client)
    return client


def _open_session(region: str | None, profile: str | None) -> boto3.session.Session:
    """Open a session for one client. boto3's default session must not be shared by threads that make clients."""
    session = botocore.session.get_session()
    session.register_component("data_loader", _find_loader())
    return boto3.session.Session(botocore_session=session, region_name=region, profile_name=profile)


@cache
def _find_loader() -> Loader:
    """Return the loader of all sessions. It caches EC2's API description, whose reading takes long."""
    loader: Loader = botocore.session.get_session().get_component("data_loader")
    return loader


def _keys(key: str | None, secret: str | None, token: str | None) -> dict[str, Any]:
    """Return the keys for a client. A session would accept a key without its secret; a client refuses it."""
    return {"aws_access_key_id": key, "aws_secret_access_key": secret, "aws_session_token": token}


def _bounded(read_seconds: float) -> Config:
    return Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=read_seconds,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        max_pool_connections=CONNECTIONS,
        tcp_keepalive=True,
    )
