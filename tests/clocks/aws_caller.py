"""`python -m tests.clocks.aws_caller URL`: calls EC2, SQS and STS as our processes do; a JSON line for each input line.

A line `plain` makes the calls with clients of boto3 that sign by the wall clock.
"""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import boto3

from scheduler.ports import CloudError
from workers.ec2.clients import Ec2Access, make_client, make_queue_client
from workers.ec2.errors import cloud_errors
from workers.ec2.permissions import Permissions

Call = Callable[[], object]


def list_calls(url: str) -> dict[str, dict[str, Call]]:
    """The calls by kind of client and by name."""
    access: dict[str, Any] = {
        "region": "us-east-1",
        "endpoint_url": url,
        "access_key_id": "testing",
        "secret_access_key": "testing",
    }
    session = boto3.session.Session("testing", "testing", region_name="us-east-1")
    ours = make_client(Ec2Access(**access)), make_queue_client(Ec2Access(**access))
    plain = session.client("ec2", endpoint_url=url), session.client("sqs", endpoint_url=url)
    permissions = Permissions(Ec2Access(**access), 10)
    return {
        "ours": {
            "ec2": ours[0].describe_instances,
            "sqs": ours[1].list_queues,
            "sts": permissions.identify,
            "dry run": lambda: permissions.look("blue"),
        },
        "plain": {
            "ec2": plain[0].describe_instances,
            "sqs": plain[1].list_queues,
            "sts": session.client("sts", endpoint_url=url).get_caller_identity,
        },
    }


def carry_out(calls: Mapping[str, Call]) -> dict[str, str]:
    """`ok`, or the code of the error, by the name of the call."""
    found = {}
    for name, call in calls.items():
        try:
            with cloud_errors():
                call()
        except CloudError as error:
            found[name] = error.code
        else:
            found[name] = "ok"
    return found


def main(url: str) -> None:
    """Serve until the input ends."""
    calls = list_calls(url)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(carry_out(calls[line.strip()])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
