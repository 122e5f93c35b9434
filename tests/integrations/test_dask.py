"""Dask on leases: workers are commands on machines that come and go. Needs `distributed`: `make integrations`."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client as DaskClient
from distributed import as_completed

from leasehold.stack import Stack
from leasehold.work.dask import LeaseholdCluster
from testbed.processes import wait_for

RULES: dict[str, Any] = {
    "pools": {
        "machines": {
            "system": "demo",
            "agent": True,
            "max_slots": 4,
            "offline_timeout": 10,
            "idle_scale_down": 30,
            "lease_ttl": 30,
            "resources": {"cpus": 2},
            "ec2": {"image": "ami-12345678"},
            "offerings": [{"name": "m5.large", "type": "m5.large", "market": "spot", "resources": {"cpus": 2}}],
        }
    }
}
ENVIRONMENT = {"LEASEHOLD_SWEEP_INTERVAL": "1", "LEASEHOLD_TICKS__INTERVAL": "1"}
KILLS = 20


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    with Stack(folder, rules=RULES, environment=ENVIRONMENT, emulator={"boot_seconds": 0.5}) as running:
        yield running


@pytest.fixture
def cluster(stack: Stack) -> Iterator[LeaseholdCluster]:
    with LeaseholdCluster(
        url=stack.url, system="demo", resources={"cpus": 1}, host="127.0.0.1", python=sys.executable, n_workers=4
    ) as running:
        yield running


def slow_square(number: int) -> int:
    import time

    time.sleep(0.3)
    return number * number


def list_machines(stack: Stack) -> list[str]:
    with stack.client() as client:
        return [str(slot.instance_id) for slot in client.slots() if slot.state == "ready" and slot.instance_id]


@pytest.mark.timeout(300)
def test_workers_start_and_an_executor_computes(cluster: LeaseholdCluster) -> None:
    with DaskClient(cluster) as client:
        client.wait_for_workers(4, timeout=120)
        assert list(client.get_executor().map(slow_square, range(20))) == [each * each for each in range(20)]


@pytest.mark.timeout(300)
def test_a_worker_whose_machine_is_taken_back_gives_its_results_away(stack: Stack, cluster: LeaseholdCluster) -> None:
    with DaskClient(cluster) as client:
        client.wait_for_workers(4, timeout=120)
        futures = client.map(slow_square, range(40), retries=100)
        stack.read_emulator("interrupt", {"instances": list_machines(stack)[:1], "deadline": 20})
        assert sum(client.gather(futures)) == sum(each * each for each in range(40))


@pytest.mark.timeout(900)
def test_a_computation_survives_twenty_lost_machines(stack: Stack, cluster: LeaseholdCluster) -> None:
    killed = 0
    with DaskClient(cluster) as client:
        client.wait_for_workers(4, timeout=120)
        futures = client.map(slow_square, range(1000), retries=1000, pure=False)
        results = as_completed(futures, with_results=True)
        total = 0
        for count, (_, value) in enumerate(results):
            total += value
            if count % 40 == 39 and killed < KILLS:
                machine = wait_for(lambda: next(iter(list_machines(stack)), None), "a machine", 120)
                stack.read_emulator("lose", {"instances": [machine]})
                killed += 1
    assert total == sum(each * each for each in range(1000))
    assert killed == KILLS


@pytest.mark.timeout(300)
def test_an_adaptive_cluster_grows_and_lets_its_machines_go(stack: Stack) -> None:
    with (
        LeaseholdCluster(url=stack.url, system="demo", resources={"cpus": 1}, host="127.0.0.1") as cluster,
        DaskClient(cluster) as client,
    ):
        cluster.adapt(minimum=0, maximum=4, interval="1s", wait_count=3)
        assert sum(client.gather(client.map(slow_square, range(40)))) == sum(each * each for each in range(40))
        wait_for(lambda: not client.scheduler_info()["workers"] or None, "no workers", 120)


def test_the_module_is_small() -> None:
    source = Path(sys.modules[LeaseholdCluster.__module__].__file__ or "").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 250
