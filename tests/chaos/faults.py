"""The faults that a run injects until each has taken effect, and the faults of EC2."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.chaos.points import BATCH_POINTS, LIST_POINTS, Order, Point

WEIGHTS: Final[Mapping[str, int]] = {
    "kill": 4,
    "stop": 4,
    "point": 8,
    "fence": 2,
    "launch": 2,
    "loss": 2,
    "calls": 6,
    "answer": 1,
    "redis": 2,
    "switch": 2,
    "clients": 1,
    "database": 2,
    "failover": 2,
    "cloud": 4,
    "refuse": 6,
    "protect": 4,
    "notices": 3,
    "template": 1,
    "interrupt": 6,
    "repeat": 6,
    "late stop": 2,
    "hand": 1,
    "drop": 4,
    "clock": 4,
    "jump": 1,
    "mallory": 6,
    "slow clients": 4,
}
"""Fault → how often it is chosen, compared with the others."""
FAULTS: Final = (*WEIGHTS, "restore")
"""The names of all faults. A restore is made once in a run."""
CALLS: Final[Sequence[tuple[str, Sequence[Point]]]] = (
    ("launch", BATCH_POINTS),
    ("launch", ("before_start_call", "after_start_call")),
    ("terminate", ("before_stop_call", "after_stop_call")),
    ("terminate", LIST_POINTS),
)
"""The queue and the points of each kind of call for several machines: launches, starts, stops and terminations."""
NEEDED: Final[Mapping[str, Sequence[tuple[Point, Order]]]] = {
    "fence": (("between_plan_and_commit", "stop"),),
    "launch": (("after_launch", "kill"), ("after_batch_call", "kill")),
    "loss": (("before_launches", "kill"), ("before_terminations", "kill"), ("before_power_sent", "kill")),
    "calls": tuple((point, "kill") for _, points in CALLS for point in points),
    "answer": (("after_batch_call", "stop"),),
    "repeat": (),
    "late stop": (),
    "refuse": (),
    "protect": (),
    "notices": (),
    "template": (),
}
"""Faults that are injected until each has taken effect → the orders that processes carry out then.

They are the faults of the guards (tests/chaos/switches.py): a deposed leader (term), a launch whose answer is lost
(token), a worker that dies between commit and sending (resend), two workers that get the answer to one batch (answer),
a termination of a slot's earlier machine (epoch), a stop of a machine that was started since (power). And those of the
calls for several machines: a worker dies at each point of a batch, of a start, of a stop and of a list of terminations.
And EC2's own: a refusal of a call, of a place and of a machine, a protected machine, a lost notice, a young template.
"""
ONLY_KILLED: Final[frozenset[Point]] = frozenset({"before_stop_call"})
"""Points at which no process is stopped: what is done late there is not promised (docs/reference/consistency.md)."""
SHORT: Final[Mapping[str, Any]] = {"deliver": 1, "code": "InsufficientInstanceCapacity", "action": "CreateFleet"}
"""A fault by which requests for several machines get one."""
CLOUD_FAULTS: Final[tuple[dict[str, Any], ...]] = (
    {"code": "InternalError", "status": 500, "action": "any", "count": 5},
    {"code": "Unavailable", "status": 503, "count": 3},
    {"code": "InsufficientInstanceCapacity", "count": 4, "status": 400},
    {"code": "MaxSpotInstanceCountExceeded", "count": 2, "status": 400},
    {"code": "RequestLimitExceeded", "action": "any", "count": 3},
    {"code": "InvalidAMIID.NotFound", "count": 1, "status": 400},
    {"lost": "reset", "action": "any", "count": 3},
    {"lost": "500", "count": 2},
    {**SHORT, "count": 2},
    {"deliver": 1, "action": "RunInstances", "count": 2},
    {"code": "InsufficientInstanceCapacity", "action": "StartInstances", "type": "c5.large", "count": 2},
    {"lost": "reset", "action": "StartInstances", "count": 2},
    {"lost": "500", "action": "StopInstances", "count": 2},
)
REFUSED: Final[Mapping[str, str]] = {"error": "call", "place": "fleet", "machine": "machine"}
"""What the emulator's log calls a refusal (`CallRecord.faults`) → where REFUSALS has it."""
REFUSALS: Final[tuple[dict[str, Any], ...]] = (
    {"code": "InsufficientInstanceCapacity", "where": "fleet", "type": "c5.large", "market": "spot"},
    {"code": "VcpuLimitExceeded", "where": "fleet", "market": "on-demand", "count": 2},
    {"code": "MaxSpotInstanceCountExceeded", "where": "fleet", "market": "spot", "count": 2},
    {"code": "VcpuLimitExceeded", "where": "call", "count": 1},
    {"code": "RequestLimitExceeded", "where": "call", "count": 2},
    # This pause lasts a minute. So it concerns one of the two offerings of a pool, and no launch has to outwait it.
    {"code": "UnauthorizedOperation", "where": "fleet", "action": "CreateFleet", "type": "c5.large", "count": 1},
    {"code": "NotYetInAnyTable", "where": "fleet", "count": 2},
    {"code": "NotYetInAnyTable", "where": "call", "status": 400, "count": 2},
    {"code": "Client.VolumeLimitExceeded", "where": "machine", "count": 2},
    {"code": "Client.InternalError", "where": "machine", "after": 0.5, "count": 2},
)
"""Refusals of a whole call, of types in zones, and machines that end with a state reason. The pauses after them are
short, because everything has to end after the faults.
"""
