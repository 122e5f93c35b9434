"""The fleet of a trace: its maximum number of processors, and fleets on which a trace cannot be replayed."""

from typing import Any

import pytest

from scheduler.model.validation import InvalidInputError
from scheduler.simulation.cloud_documents import CloudDocument
from scheduler.simulation.fleet import make_fleet
from tests.traces.logs import Document, a_pool, an_ec2_pool

NO_CLOUD = CloudDocument()
OFFERINGS = [{"name": "small", "resources": {"cpus": 2}}, {"name": "large", "resources": {"cpus": 16}}]


@pytest.mark.parametrize(
    ("pools", "scheduler", "cloud", "most"),
    [
        ({"p": a_pool()}, {}, {}, 2),
        # whole CPUs of each slot
        ({"p": a_pool(resources={"cpus": 3.9})}, {}, {}, 6),
        # the largest offering
        ({"p": an_ec2_pool(offerings=OFFERINGS)}, {}, {}, 32),
        # the limit of leases on a slot
        ({"p": a_pool(resources={"cpus": 8}, max_leases_per_slot=3)}, {}, {}, 6),
        # slots without resources: only their leases are limited
        ({"p": a_pool(resources=None)}, {}, {}, 2),
        ({"p": a_pool(resources=None, max_leases_per_slot=4)}, {}, {}, 8),
        # default resources of each request count too
        ({"p": a_pool(resources={"cpus": 8, "memory_mib": 1000}, default_resources={"memory_mib": 400})}, {}, {}, 4),
        # the sum of all pools of the system
        ({"p": a_pool(), "q": a_pool(max_slots=3)}, {}, {}, 5),
        # a pool of another system does not count
        ({"p": a_pool(), "q": a_pool(system="y")}, {}, {}, 2),
        # max_slots over all pools: the largest slots count
        ({"p": a_pool(), "q": an_ec2_pool(offerings=OFFERINGS)}, {"max_slots": 3}, {}, 33),
        ({"p": a_pool()}, {"system": {"x": {"max_slots": 1}}}, {}, 1),
        # EC2's quota does not limit static hosts
        ({"p": a_pool(), "q": an_ec2_pool()}, {}, {"quota": 1}, 3),
    ],
)
def test_the_maximum_number_of_processors_of_a_fleet(
    pools: Document, scheduler: Document, cloud: Document, most: int
) -> None:
    fleet = make_fleet({"pools": pools, "scheduler": scheduler}, CloudDocument.model_validate(cloud), system="x")
    assert fleet.most_processors == most


def test_the_option_slots_replaces_max_slots_of_the_pool() -> None:
    for pool in (a_pool(), an_ec2_pool(), {"system": "x", "provider": "static"}):
        fleet = make_fleet({"pools": {"p": pool}}, NO_CLOUD, slots=7)
        assert (fleet.slots, fleet.most_processors) == ({"p": 7}, 7)
    hosts = make_fleet({"pools": {"p": a_pool()}}, NO_CLOUD, slots=3).list_hosts()
    assert [(host.id, host.pool, host.state) for host in hosts] == [
        (f"p-{number}", "p", "ready") for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("document", "options", "message"),
    [
        ({}, {}, 'pools: expected a pool that serves the jobs of the trace, got "none"'),
        (
            {"pools": {"p": a_pool(), "q": a_pool(system="y")}},
            {},
            '--system: expected the system that all jobs of the trace are to request, got "2: x, y"',
        ),
        ({"pools": {"p": a_pool()}}, {"system": "y"}, '--system: expected one of: x, got "y"'),
        (
            {"pools": {"p": a_pool(), "q": a_pool()}},
            {"slots": 3},
            '--slots: expected exactly one pool that serves x, got "p, q"',
        ),
        (
            {"pools": {"p": {"system": "x", "provider": "static"}}},
            {},
            "pools.p.max_slots: expected the number of hosts (or --slots), got null",
        ),
        (
            {"pools": {"p": a_pool(max_slots=1_000_000_000)}},
            {},
            "pools.p.max_slots: expected at most 1000000 hosts (or --slots), got 1000000000",
        ),
        ({"pools": {"p": a_pool()}}, {"slots": 2_000_000}, "--slots: expected at most 1000000, got 2000000"),
        (
            {"pools": {"p": a_pool(resources={"units": 3})}},
            {},
            'pools.p.resources: expected slot resources that hold one processor of a job (1 cpu), got {"units": 3.0}',
        ),
        (
            {"pools": {"p": an_ec2_pool(min_slots=2)}},
            {"slots": 1},
            "pools.p.min_slots: expected at most max_slots (1), got 2",
        ),
    ],
)
def test_a_fleet_that_cannot_serve_a_trace_is_refused_with_the_reason(
    document: Document, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        make_fleet(document, NO_CLOUD, **options)
    assert str(caught.value) == message


@pytest.mark.parametrize("scheduler", [{}, {"share_cores": True}, {"system": {"x": {"share_cores": True}}}])
def test_a_trace_is_replayed_without_limits_of_cores(scheduler: Document) -> None:
    """Limits of cores do not change when a job ends, so they are not computed."""
    fleet = make_fleet({"pools": {"p": a_pool()}, "scheduler": scheduler}, NO_CLOUD)
    assert not fleet.rules.settings_of("p", "x").share_cores
