"""Send EC2's events about instances to EventBridge: notices of an interruption, rebalance recommendations, changes of
state, and scheduled changes of AWS Health.

As in AWS, the rules of the default bus decide which target gets which event, and in which form: by their pattern,
state, targets and input transformers. An event for a target that cannot be reached is lost without an error.
"""

import contextlib
import json
import time
import uuid
from collections.abc import Sequence
from email.utils import formatdate
from typing import Any, Final

from moto.core.exceptions import JsonRESTError, ServiceException
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.events.models import events_backends
from moto.sqs.models import sqs_backends

from leasehold_emulator.lives import Life
from workers.ec2.interruptions import HEALTH, INTERRUPTION, REBALANCE, STATE_CHANGE, STATES

NOTICE_SECONDS: Final = 120.0
"""Seconds from the interruption notice to the end of a spot instance, as AWS promises."""
RULES: Final = {
    "leasehold-interruptions": {"source": ["aws.ec2"], "detail-type": [INTERRUPTION, REBALANCE]},
    "leasehold-states": {"source": ["aws.ec2"], "detail-type": [STATE_CHANGE], "detail": {"state": list(STATES)}},
    "leasehold-health": {
        "source": ["aws.health"],
        "detail-type": [HEALTH],
        "detail": {"service": ["EC2"], "eventTypeCategory": ["scheduledChange"]},
    },
}
"""Name of a rule that the emulator makes -> its pattern, as in docs/iam."""


def interruption_event(life: Life) -> dict[str, Any]:
    """Return the EventBridge event that EC2 sends two minutes before it terminates a spot instance (user guide, "Spot
    interruption notices").

    The event has no field for the end of the instance; a reader adds two minutes to the event's time. If the instance
    ends sooner or later than that, the time of the event is therefore set to two minutes before its end.
    """
    at = time.time() if life.deadline is None else life.deadline - NOTICE_SECONDS
    return {
        **_envelope(INTERRUPTION, life.region, at),
        # The ARN of this event contains a zone and no account, unlike all others.
        "resources": [f"arn:aws:ec2:{life.zone}:instance/{life.id}"],
        "detail": {"instance-id": life.id, "instance-action": "terminate"},
    }


def rebalance_event(life: Life) -> dict[str, Any]:
    """Return the EventBridge event that EC2 sends when a spot instance has an increased risk of interruption."""
    return {
        **_envelope(REBALANCE, life.region, time.time()),
        "resources": [f"arn:aws:ec2:{life.region}:{DEFAULT_ACCOUNT_ID}:instance/{life.id}"],
        "detail": {"instance-id": life.id},
    }


def state_event(life: Life, state: str) -> dict[str, Any]:
    """Return the EventBridge event that EC2 sends when an instance has entered a state."""
    return {
        **_envelope(STATE_CHANGE, life.region, time.time()),
        "resources": [f"arn:aws:ec2:{life.region}:{DEFAULT_ACCOUNT_ID}:instance/{life.id}"],
        "detail": {"instance-id": life.id, "state": state},
    }


def maintenance_event(lives: Sequence[Life], code: str, begins_at: float, ends_at: float) -> dict[str, Any]:
    """Return the EventBridge event by which AWS Health announces a scheduled change of instances of one region. Its
    times are written as in an HTTP header (user guide of AWS Health, "EventBridge schema").
    """
    region, now = lives[0].region, time.time()
    updated = formatdate(now, usegmt=True)
    return {
        **_envelope(HEALTH, region, now),
        "source": "aws.health",
        "resources": [life.id for life in lives],
        "detail": {
            "eventArn": f"arn:aws:health:{region}::event/EC2/{code}/{code}_{uuid.uuid4()}",
            "service": "EC2",
            "eventTypeCode": code,
            "eventTypeCategory": "scheduledChange",
            "eventScopeCode": "ACCOUNT_SPECIFIC",
            "communicationId": uuid.uuid4().hex,
            "startTime": formatdate(begins_at, usegmt=True),
            "endTime": formatdate(ends_at, usegmt=True),
            "lastUpdatedTime": updated,
            "statusCode": "upcoming",
            "eventRegion": region,
            "eventDescription": [{"language": "en_US", "latestDescription": "an event of the emulator"}],
            "affectedEntities": [
                {"entityValue": life.id, "status": "PENDING", "lastUpdatedTime": updated} for life in lives
            ],
            "affectedAccount": DEFAULT_ACCOUNT_ID,
            "page": "1",
            "totalPages": "1",
        },
    }


def send_notice(event: dict[str, Any]) -> None:
    """Send an EventBridge event to the targets of each enabled rule on the default bus of the event's region. Errors of
    a target are ignored.
    """
    bus = events_backends[DEFAULT_ACCOUNT_ID][event["region"]].describe_event_bus("default")
    for rule in list(bus.rules.values()):
        if rule.state == "ENABLED":
            with contextlib.suppress(JsonRESTError, ServiceException, NotImplementedError):
                # moto's put_events sends an event in the same way, but its template lacks the account.
                if any("InputTransformer" in target for target in rule.targets):
                    rule.send_to_targets({**event, "ingestion-time": event["time"]})  # type: ignore[typeddict-item]
                else:
                    rule.send_to_targets(event, transform_input=False)  # type: ignore[arg-type]


def make_queue(name: str, region: str) -> None:
    """Make an SQS queue, and the EventBridge rules that send EC2's events about instances to the queue. If the queue
    exists already, keep it.
    """
    queues, events = sqs_backends[DEFAULT_ACCOUNT_ID][region], events_backends[DEFAULT_ACCOUNT_ID][region]
    queue = queues.queues.get(name) or queues.create_queue(name)
    for rule, pattern in RULES.items():
        events.put_rule(rule, event_pattern=json.dumps(pattern))
        events.put_targets(rule, None, [{"Id": "queue", "Arn": queue.queue_arn}])


def queue_path(name: str) -> str:
    """Return the path in the URL of an SQS queue on the emulator."""
    return f"/{DEFAULT_ACCOUNT_ID}/{name}"


def _envelope(kind: str, region: str, at: float) -> dict[str, Any]:
    return {
        "version": "0",
        "id": str(uuid.uuid4()),
        "detail-type": kind,
        "source": "aws.ec2",
        "account": DEFAULT_ACCOUNT_ID,
        # moto writes it in the form of AWS, like 2026-11-21T05:14:58Z.
        "time": at,
        "region": region,
    }
