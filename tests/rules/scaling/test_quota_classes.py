"""What EC2's quota of one class of types, or of one market, holds back, and what goes on."""

import pytest

from tests.rules.playing import Cases, Document, a_scenario, a_slot, play_out, submit, tick

CPU: Document = {"name": "m5.large", "market": "spot", "price": 1, "resources": {"cpus": 2}}
GPU: Document = {"name": "g5.xlarge", "market": "spot", "price": 9, "resources": {"cpus": 4, "gpus": 1}}
UNKNOWN: Document = {"name": "new1.large", "market": "spot", "price": 5, "resources": {"cpus": 8}}
ON_DEMAND: Document = {"name": "c5.large", "market": "on-demand", "price": 2, "resources": {"cpus": 2}}
A_GPU: Document = {"resources": {"gpus": 1}}


def a_hold(kind: str = "quota", subject: str = "spot:g", until: float = 500, pool: str = "linux") -> Document:
    return {"pool": pool, "kind": kind, "subject": subject, "until": until}


def a_case(*timeline: Document, **parts: object) -> Document:
    pool = {"offerings": [CPU, GPU], "max_leases_per_slot": 1, "max_slots": 4} | parts.pop("pool", {})  # type: ignore[operator]
    return a_scenario(*timeline, tick(0), pool=pool, **parts)


CASES: Cases = {
    "what needs another class is launched": (
        a_case(submit(0, "g", **A_GPU), submit(0, "c", resources={"cpus": 1}), holds=[a_hold()]),
        [["launch linux-1 m5.large demand", "g waits at_quota", "c waits booting"]],
    ),
    "a market without a class holds all its classes": (
        a_case(submit(0, "c", resources={"cpus": 1}), holds=[a_hold(subject="spot")]),
        [["c waits at_quota"]],
    ),
    "the quota of the pool holds all markets and classes": (
        a_case(submit(0, "c", resources={"cpus": 1}), holds=[a_hold(subject="")], pool={"offerings": [CPU, ON_DEMAND]}),
        [["c waits at_quota"]],
    ),
    "another market is not held": (
        a_case(
            submit(0, "c", resources={"cpus": 1}),
            holds=[a_hold(subject="spot:standard")],
            pool={"offerings": [CPU, ON_DEMAND | {"price": 1}]},
        ),
        [["launch linux-1 c5.large demand", "c waits booting"]],
    ),
    "types that the table does not know share one class": (
        a_case(
            submit(0, "u", resources={"cpus": 8}),
            holds=[a_hold(subject="spot:other")],
            pool={"offerings": [CPU, UNKNOWN]},
        ),
        [["u waits at_quota"]],
    ),
    "an idle slot of another class stays": (
        a_case(submit(0, "g", **A_GPU), holds=[a_hold()], slots=[a_slot("linux-1", "ready", offering="m5.large")]),
        [["g waits at_quota"]],
    ),
    "an idle slot of the class makes room": (
        a_case(
            submit(0, "g", resources={"gpus": 1, "cpus": 8}),
            holds=[a_hold()],
            slots=[a_slot("linux-1", "ready", offering="g5.xlarge")],
            pool={"offerings": [GPU, GPU | {"name": "g5.8xlarge", "price": 20, "resources": {"cpus": 8, "gpus": 1}}]},
        ),
        [["drain linux-1 at_quota", "g waits at_quota"]],
    ),
    "a slot without an offering makes room": (
        a_case(submit(0, "g", **A_GPU), holds=[a_hold()], slots=[a_slot("linux-1", "ready", resources={"cpus": 1})]),
        [["drain linux-1 at_quota", "g waits at_quota"]],
    ),
    "the missing role for spot holds spot in every pool": (
        a_case(submit(0, "c", resources={"cpus": 1}), holds=[a_hold("auth", "spot", pool="*")]),
        [["c waits misconfigured"]],
    ),
    "the missing role for spot does not hold on-demand": (
        a_case(
            submit(0, "c", resources={"cpus": 1}),
            holds=[a_hold("auth", "spot", pool="*")],
            pool={"offerings": [ON_DEMAND]},
        ),
        [["launch linux-1 c5.large demand", "c waits booting"]],
    ),
    "a missing permission for one offering holds that offering alone": (
        a_case(
            submit(0, "c", resources={"cpus": 1}),
            holds=[a_hold("auth", "m5.large")],
            pool={"offerings": [CPU, ON_DEMAND | {"price": 1.2}]},
        ),
        [["launch linux-1 c5.large demand", "c waits booting"]],
    ),
    "a gang that cannot be launched leaves the trial of a quota to the next": (
        a_case(
            submit(
                0, "g", components=[{"name": "a", "resources": {"cpus": 2}}, {"name": "b", "resources": {"gpus": 1}}]
            ),
            submit(0, "c", resources={"cpus": 2}),
            holds=[a_hold(subject="spot:standard", until=0), a_hold("capacity", "g5.xlarge")],
            pool={"offerings": [CPU, GPU]},
        ),
        [["launch linux-1 m5.large demand", "g waits capacity", "c waits booting"]],
    ),
    "spot's quota counts for on_demand_after": (
        a_case(
            submit(0, "c", resources={"cpus": 1}),
            holds=[a_hold(subject="spot:standard")],
            pool={"offerings": [CPU, ON_DEMAND], "on_demand_after": 1},
        ),
        [["launch linux-1 c5.large demand", "c waits booting"]],
    ),
    "an offering rests if all its subnets rest": (
        a_case(
            submit(0, "c", resources={"cpus": 1}),
            holds=[a_hold("capacity", "@subnet-1"), a_hold("misconfigured", "m5.large@subnet-2")],
            pool={"offerings": [CPU], "ec2": {"image": "ami-1", "subnets": ["subnet-1", "subnet-2"]}},
        ),
        [["c waits misconfigured"]],
    ),
    "an offering is launched in the subnet that does not rest": (
        a_case(
            submit(0, "c", resources={"cpus": 1}),
            holds=[a_hold("capacity", "@subnet-1")],
            pool={"offerings": [CPU], "ec2": {"image": "ami-1", "subnets": ["subnet-1", "subnet-2"]}},
        ),
        [["launch linux-1 m5.large demand", "c waits booting"]],
    ),
    "the tier waits for launches that max_slots withholds": (
        a_case(
            submit(0, "g", components=[{"name": "w", "count": 2, "resources": {"cpus": 2}}]),
            slots=[a_slot("linux-1", "ready", offering="t3.small")],
            pool={
                "offerings": [ON_DEMAND, ON_DEMAND | {"name": "t3.small", "resources": {"cpus": 1}}],
                "max_slots": 2,
                "stopped_slots": 2,
            },
        ),
        [["drain linux-1 at_quota", "g waits at_max_slots"]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_quota_holds_only_what_needs_it(name: str) -> None:
    document, expected = CASES[name]
    assert play_out(document).ticks == expected
