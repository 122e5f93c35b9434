"""boto3 clients with every wait bounded: connect 3 s, read 15 s (launches 60 s), 3 attempts (PITFALLS)."""

from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.config import Config

from workers.ec2.errors import cloud_errors

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

CONNECT_SECONDS: Final = 3.0
READ_SECONDS: Final = 15.0
LAUNCH_READ_SECONDS: Final = 60.0
ATTEMPTS: Final = 3
CONNECTIONS: Final = 32
"""Of one client: the threads of a launch or health worker share it."""


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
    """An EC2 client; without keys boto3's own chain finds the credentials (environment, profile, role);
    `profile` names the one of its configuration to use.

    Raises CloudError (auth, misconfigured) when boto3 cannot make one. Thread-safe once made.
    """
    config = Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=read_seconds,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        max_pool_connections=CONNECTIONS,
        tcp_keepalive=True,
    )
    keys: dict[str, Any] = {
        "aws_access_key_id": access_key_id,
        "aws_secret_access_key": secret_access_key,
        "aws_session_token": session_token,
    }
    with cloud_errors():
        # A session of its own: boto3's default one may not be shared between threads while it makes clients.
        session = boto3.session.Session(region_name=region, profile_name=profile)
        return session.client("ec2", endpoint_url=endpoint_url, config=config, **keys)
