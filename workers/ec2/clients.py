"""Make boto3 clients with a limit for every wait: 3 s to connect, 15 s to read an answer (60 s for launches), 3
attempts.

The clients sign their requests with the time of AWS (`workers/ec2/signing_time.py`).
"""

import os
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import boto3
import botocore.session
import msgspec
from botocore.config import Config
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES
from botocore.loaders import Loader

from scheduler.protocol.loopback import is_local_url
from workers.ec2.descriptions import DescriptionFiles
from workers.ec2.errors import cloud_errors, refuse_foreign_answers, remember_unclear_attempts
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
"""Most connections of one boto3 client. All threads of a launch worker or health worker share one client."""

_ALONE: Final[dict[str, Any]] = {
    **{name: (None, None, default, kind) for name, (_, _, default, kind) in BOTOCORE_DEFAUT_SESSION_VARIABLES.items()},
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
    # Without a region in the settings, that of the environment counts.
    **{name: BOTOCORE_DEFAUT_SESSION_VARIABLES[name] for name in ("region", "data_path")},
}
"""The variables of a session with their defaults, without names in the environment and in files."""


class Ec2Access(msgspec.Struct, frozen=True, kw_only=True):
    """Region, URL and credentials for EC2. If it has no keys, boto3's own chain (environment, profile, role) finds the
    credentials.
    """

    region: str | None = None
    """AWS region of the EC2 calls; None: boto3's own chain (environment, profile) finds the region."""
    endpoint_url: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    profile: str | None = None
    """Profile in boto3's configuration that has the credentials; None: boto3 chooses one."""

    def __repr__(self) -> str:
        """Return a text with region and URL. The keys are missing in it, because the text may be logged."""
        return f"Ec2Access(region={self.region!r}, endpoint_url={self.endpoint_url!r})"


def make_client(access: Ec2Access, read_seconds: float = READ_SECONDS) -> "EC2Client":
    """Return an EC2 client, which several threads may use. Raises CloudError (auth or misconfigured) if boto3 cannot
    make one.
    """
    client: EC2Client = open_client("ec2", access, read_seconds)
    return client


def make_queue_client(access: Ec2Access) -> "SQSClient":
    """Return an SQS client. Its read timeout is longer than that of other clients by LONGEST_POLL, so that the timeout
    does not end a long poll (a call that waits for messages). Raises CloudError (auth or misconfigured) if boto3 cannot
    make a client.
    """
    client: SQSClient = open_client("sqs", access, READ_SECONDS + LONGEST_POLL)
    return client


def open_client(
    service: str,
    access: Ec2Access,
    read_seconds: float,
    connect_seconds: float = CONNECT_SECONDS,
    attempts: int = ATTEMPTS,
) -> Any:
    """Return a boto3 client for an AWS service, with these time limits in seconds and this number of attempts for each
    call.

    Raises CloudError (auth or misconfigured) if boto3 cannot make one.
    """
    is_local = is_local_url(access.endpoint_url)
    config = Config(
        connect_timeout=connect_seconds,
        read_timeout=read_seconds,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=CONNECTIONS,
        tcp_keepalive=True,
        # {}: none. None: those of the environment.
        proxies={} if is_local else None,
    )
    with cloud_errors():
        # boto3's default session must not be shared by threads that make clients.
        # With keys the session ignores AWS_PROFILE, which need not exist. An emulator on this host with keys depends on
        # no variable AWS_… and on no file in ~/.aws.
        session = (
            botocore.session.Session()
            if access.access_key_id is None
            else botocore.session.Session(session_vars=_ALONE if is_local else {"profile": _ALONE["profile"]})
        )
        session.register_component("data_loader", _find_loader())
        opened = boto3.session.Session(botocore_session=session, region_name=access.region, profile_name=access.profile)
        client = opened.client(
            service,  # type: ignore[call-overload]  # the stubs know only literal names
            endpoint_url=access.endpoint_url,
            config=config,
            # A session would accept a key without its secret; a client refuses it.
            aws_access_key_id=access.access_key_id,
            aws_secret_access_key=access.secret_access_key,
            aws_session_token=access.session_token,
        )
    AwsClock().guard(client)
    remember_unclear_attempts(client)
    refuse_foreign_answers(client)
    return client


@cache
def _find_loader() -> Loader:
    """Return botocore's data loader, which all sessions share, because it caches EC2's API description, which takes
    long to read.
    """
    session = botocore.session.Session(session_vars=_ALONE)
    loader: Loader = session.get_component("data_loader")
    loader.file_loader = DescriptionFiles()
    return loader
