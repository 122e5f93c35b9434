"""The metrics process, read over HTTP as Prometheus does, while workers run."""

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scheduler.model.waiting_codes import WAITING_CODES
from scheduler.protocol.names import QUEUE_NAMES
from scheduler.view.metric_table import METRICS
from testbed.processes import Process, wait_for
from testbed.stack import Stack, a_pool
from tests.system.conftest import RULES

pytestmark = pytest.mark.timeout(120)
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def address(stack: Stack) -> Iterator[str]:
    """The URL of the metrics of the running stack."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    environment = {**stack.environment, "LEASEHOLD_METRICS__PORT": str(port)}
    process = Process("metrics", ["workers.exporter"], environment, stack.folder)
    yield f"http://127.0.0.1:{port}/metrics"
    process.ask_to_end()
    process.stop()


def scrape(address: str) -> Samples:
    """Return all samples by name and labels; {} while the process does not answer."""
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - loopback
            families = list(text_string_to_metric_families(answer.read().decode()))
    except urllib.error.URLError:
        return {}
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value for each in families for sample in each.samples
    }


def of(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def test_a_lease_changes_the_metrics(stack: Stack, address: str) -> None:
    stack.await_empty()
    before = wait_for(lambda: scrape(address), "the metrics process")
    for name, metric in METRICS.items():
        if not metric.labels:
            suffix = "" if metric.kind == "counter" else "_count"
            assert of(before, f"{name}{suffix}") is not None, name
    for code in WAITING_CODES:
        assert of(before, "leasehold_reservations_waiting", code=code) is not None
    for queue in QUEUE_NAMES:
        assert of(before, "leasehold_queue_messages", queue=queue) is not None
        assert of(before, "leasehold_queue_oldest_message_seconds", queue=queue) is not None
    for pool in ("linux", "warm"):
        assert of(before, "leasehold_at_quota", pool=pool) == 0
        assert of(before, "leasehold_slots_offline", pool=pool) == 0
    assert stack.submit("metered")["ok"]
    (row,) = stack.await_phase(["metered"], "leased")
    leased = of(before, "leasehold_time_to_lease_seconds_count") or 0
    wait_for(
        lambda: of(scrape(address), "leasehold_time_to_lease_seconds_count") == leased + 1, "the lease to be counted"
    )
    after = scrape(address)
    ready = of(before, "leasehold_time_to_ready_seconds_count", pool="linux") or 0
    assert of(after, "leasehold_time_to_ready_seconds_count", pool="linux") == ready + 1
    assert of(after, "leasehold_slots_online", pool="linux") == 1
    assert of(after, "leasehold_up", part="database") == of(after, "leasehold_up", part="redis") == 1
    # Its machine is checked repeatedly.
    wait_for(lambda: of(scrape(address), "leasehold_probe_age_seconds_max") is not None, "the age of a probe")
    assert stack.ask("release", {"reservation": "metered", "token": row.token})["ok"]


def test_waiting_reservations_are_reported_with_the_reason(stack: Stack, address: str) -> None:
    assert stack.ask("submit", {"id": "metered-on-hold", "pool": "linux", "priority": 0})["ok"]
    try:
        wait_for(
            lambda: of(scrape(address), "leasehold_reservations_waiting", code="on_hold") == 1,
            "the reservation on hold",
        )
        assert of(scrape(address), "leasehold_longest_wait_seconds") == 0
    finally:
        stack.ask("cancel", {"reservation": "metered-on-hold"})


@pytest.fixture
def shared(stack: Stack) -> Iterator[Stack]:
    """The stack with a pool of one slot for which two accounts compete."""
    system = "shared-linux"
    pool = a_pool(system=system, max_slots=1, max_leases_per_slot=1)
    accounts = {"saver": {"charge_rate": [2], "max_charge_seconds": 600, "balance": [100]}}
    spender = {"charge_rate": [0, 1], "max_charge_seconds": 600, "balance": [0, 50]}
    settings = {"system": {system: {"queue": "quota", "preemption_grace": 0}}}
    stack.apply({"pools": {**RULES["pools"], "shared": pool}, "scheduler": settings, "accounts": accounts})
    assert stack.ask("account", {"account": "spender", **spender})["balance"] == [0, 50, 0, 0, 0]
    yield stack
    for name in ("metered-saves", "metered-spends"):
        stack.ask("cancel", {"reservation": name})
    assert stack.ask("reset_account", {"account": "spender"})["balance"] == [0] * 5
    assert stack.ask("forget_account", {"account": "spender"})["ok"]
    stack.await_empty("shared")
    stack.apply(RULES)
    assert stack.slots("shared") == []


def test_accounts_are_reported_at_every_level_while_one_preempts_another(shared: Stack, address: str) -> None:
    wait_for(lambda: of(scrape(address), "leasehold_account_balance", account="saver", level="0"), "the accounts")
    before = scrape(address)
    for level in map(str, range(6)):
        for account in ("saver", "spender"):
            assert of(before, "leasehold_account_leases", account=account, level=level) == 0
            assert of(before, "leasehold_account_waiting", account=account, level=level) == 0
    assert of(before, "leasehold_preemptions_total", account="saver", level="0") == 0
    assert of(before, "leasehold_preempted_total", account="spender", level="1") == 0
    assert shared.ask("submit", {"id": "metered-spends", "pool": "shared", "account": "spender"})["ok"]
    shared.await_phase(["metered-spends"], "leased")
    assert shared.ask("submit", {"id": "metered-saves", "pool": "shared", "account": "saver"})["ok"]
    shared.await_phase(["metered-saves"], "leased")

    def is_exported() -> bool:
        now = scrape(address)
        return (
            of(now, "leasehold_account_leases", account="saver", level="0") == 1
            and of(now, "leasehold_account_leases", account="spender", level="1") == 0
            and of(now, "leasehold_account_waiting", account="spender", level="1") == 1
            and of(now, "leasehold_preemptions_total", account="saver", level="0") == 1
            and of(now, "leasehold_preempted_total", account="spender", level="1") == 1
            and (of(now, "leasehold_account_spent_total", account="saver", level="0") or 0) > 0
        )

    wait_for(is_exported, "both sides of the preemption")
    assert of(scrape(address), "leasehold_account_leases", account="saver", level="5") == 0
