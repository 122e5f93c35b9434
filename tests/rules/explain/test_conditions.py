"""Descriptions of conditions: of a slot beyond its state, and of a pool whose launches pause."""

from typing import Any

import pytest

from scheduler.explain.conditions import describe_pool, describe_slot
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.pools import Pool
from scheduler.model.slots import ADOPTED
from scheduler.model.view import View
from tests.builders import NOW, SYSTEM, a_slot, some_rules

STATIC = Pool(system=SYSTEM, provider="static")
EC2 = Pool(system=SYSTEM, max_slots=3)

SLOTS: dict[str, tuple[Pool | None, dict[str, Any], list[str]]] = {
    # the pool, the slot, its description
    "nothing": (EC2, {}, []),
    "booting since": (EC2, {"state": "booting", "since": NOW - 90}, ["booting for 90 s of 10 min at most"]),
    "adopted": (
        EC2,
        {"state": "booting", "launch_reason": ADOPTED},
        ["booting for 0 s of 10 min at most", "its machine was found by the cluster's tags and adopted"],
    ),
    "a start": (
        EC2,
        {"state": "booting", "power": "start"},
        ["booting for 0 s of 10 min at most", "its stopped machine is started"],
    ),
    "stopped": (EC2, {"state": "stopped"}, ["its machine is started for demand"]),
    "a stop": (EC2, {"state": "stopped", "power": "stop"}, ["its machine stops, and cannot be started yet"]),
    "error": (
        EC2,
        {"state": "error", "error": "misconfigured"},
        ["its launch failed (misconfigured): not launched again for 60 s"],
    ),
    "error with the cloud's words": (
        EC2,
        {"state": "error", "error": "misconfigured", "refusal": "InvalidKeyPair.NotFound: no key pair ci"},
        [
            "its launch failed (misconfigured): not launched again for 60 s",
            "EC2 refused its last machine: InvalidKeyPair.NotFound: no key pair ci",
        ],
    ),
    "a machine that ended": (
        EC2,
        {"state": "empty", "refusal": "Client.UserInitiatedShutdown: User initiated shutdown"},
        ["EC2 refused or ended its last machine: Client.UserInitiatedShutdown: User initiated shutdown"],
    ),
    "a refused termination": (
        EC2,
        {"state": "terminating", "refusal": "OperationNotPermitted: protected"},
        ["EC2 refuses to end its machine: OperationNotPermitted: protected"],
    ),
    "a refused start": (
        EC2,
        {"state": "stopped", "refusal": "IncorrectInstanceState: not stopped"},
        ["its machine is started for demand", "EC2 answered about its machine: IncorrectInstanceState: not stopped"],
    ),
    "tried again": (EC2, {"state": "terminating", "attempts": 3}, ["terminating: tried 3 times"]),
    "exactly the timeout is online": (STATIC, {"last_seen": NOW - 180}, []),
    "offline": (STATIC, {"last_seen": NOW - 181}, ["offline: no heartbeat for 3 min"]),
    "silence means nothing in a pool of EC2": (EC2, {"last_seen": NOW - 9999}, []),
    "missing": (EC2, {"missed": 2}, ["missing: EC2 did not list its machine in 2 checks in a row"]),
    "lost": (STATIC, {"state": "empty", "machine": "host-7"}, ["lost: waits for its host host-7 to register again"]),
    "interrupted": (EC2, {"interrupted_by": NOW + 100}, ["interrupted: EC2 ends its machine in 100 s"]),
    "draining": (EC2, {"state": "draining", "drain_reason": "requested"}, ["leaves service: an operator drains it"]),
    "leaving": (STATIC, {"state": "draining", "drain_reason": "leaving"}, ["leaves service: the host leaves"]),
    "cordoned": (EC2, {"cordoned": True}, ["cordoned: takes no new leases"]),
    "a stranger": (
        STATIC,
        {"stranger": "ghost"},
        ["the unknown reservation ghost was confirmed on it: takes no leases until it is reported as idle"],
    ),
    "nearly unhealthy": (
        EC2,
        {"unconfirmed": 2, "failed_probes": 1},
        ["unconfirmed leases in a row: 2 of 3", "failed probes in a row: 1 of 3"],
    ),
    "drifted": (
        EC2,
        {"launch_digest": "image:1 tags:2", "drain_reason": "drifted", "state": "draining"},
        [
            "leaves service: its machine differs from what the pool launches now",
            "drifted: the pool has another image, tags now",
        ],
    ),
    "no pool": (None, {}, ["its pool linux is not configured any more"]),
}


@pytest.mark.parametrize("name", SLOTS)
def test_a_slot_is_described_in_words(name: str) -> None:
    pool, fields, words = SLOTS[name]
    assert describe_slot(a_slot(**{"idle_since": NOW, **fields}), pool, NOW) == words


def a_hold(kind: Any, subject: str = "", **fields: Any) -> Hold:
    pool = fields.pop("pool", "*" if kind == "auth" else "linux")
    fields = {"id": hold_id(pool, kind, subject), "refused_at": NOW, "until": NOW + 40, **fields}
    return Hold(pool=pool, kind=kind, subject=subject, **fields)


LEARNED = "or until fewer than 1 machines are active"
QUOTA = f"EC2's quota of spot of pool linux is reached: not launched for 40 s more, {LEARNED}"
NO_BIG = "EC2 has no capacity for big of pool linux: not launched for 40 s more"
HOLDS: dict[str, tuple[Hold, list[str]]] = {
    "capacity": (
        a_hold("capacity", "big", streak=2),
        ["EC2 has no capacity for big of pool linux: not launched for 40 s more (2 refusals in a row)"],
    ),
    "a learned quota": (a_hold("quota", "spot", active=1), [QUOTA]),
    "a quota that is being tried": (
        a_hold("quota", "spot", until=NOW),
        ["EC2's quota of spot of pool linux was reached: the next launch is tried alone"],
    ),
    "throttled": (a_hold("throttled"), ["EC2 asked us to slow down: nothing is launched in pool linux for 40 s more"]),
    "misconfigured": (
        a_hold("misconfigured", "big"),
        ["the launch of big of pool linux was refused as misconfigured: not tried for 40 s more"],
    ),
    "auth": (
        a_hold("auth"),
        ["EC2 refused the credentials or permissions of the workers: nothing is launched for 40 s more"],
    ),
    "in one place": (
        a_hold("capacity", "big/spot@eu-1a"),
        ["EC2 has no capacity for big/spot of pool linux in eu-1a: not launched for 40 s more"],
    ),
    "a place": (
        a_hold("capacity", "@subnet-1"),
        ["EC2 has no capacity for every offering of pool linux in subnet-1: not launched for 40 s more"],
    ),
    "a quota of a class": (
        a_hold("quota", "on-demand:g"),
        ["EC2's quota of on-demand vCPUs of G and VT types of pool linux is reached: not launched for 40 s more"],
    ),
    "a quota of the pool": (a_hold("quota"), ["EC2's quota of pool linux is reached: not launched for 40 s more"]),
    "the role for spot": (
        a_hold("auth", "spot"),
        ["EC2 does not permit to launch spot of every pool: not tried for 40 s more"],
    ),
    "a permission for one offering": (
        a_hold("auth", "big", pool="linux"),
        ["EC2 does not permit to launch big of pool linux: not tried for 40 s more"],
    ),
    "the cloud's words": (
        a_hold("capacity", "big", code="InsufficientInstanceCapacity", message="There is none."),
        [f"{NO_BIG}; EC2's answer: InsufficientInstanceCapacity: There is none."],
    ),
    "boots that fail": (
        a_hold("unhealthy", "linux-1 timed out", id=hold_id("linux", "unhealthy"), streak=3),
        ["3 boots in a row failed (the last one: linux-1 timed out): nothing is launched for 40 s more"],
    ),
    "boots that do not fail often enough": (a_hold("unhealthy", streak=2), []),
    "strangers": (a_hold("strangers", active=2), ["machines of ours that no slot knows: 2"]),
    "over": (a_hold("capacity", "big", until=NOW), []),
}


@pytest.mark.parametrize("name", HOLDS)
def test_what_delays_launches_is_described_with_its_reason_and_end(name: str) -> None:
    hold, words = HOLDS[name]
    view = View([hold, a_slot("linux-1")])
    assert describe_pool(view, some_rules(), "linux", NOW) == words
