"""Counters and histograms summed over all processes, and the metrics that Prometheus reads."""

import threading
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from scheduler.model.accounts import Account
from scheduler.model.slots import Slot
from scheduler.model.transitions import PHASES, SLOT_STATES
from scheduler.model.waiting_codes import WAITING_CODES
from scheduler.ports import Meter, Store, StoreUnavailableError, Transaction
from scheduler.store.memory import MemoryStore
from scheduler.view.connection import make_redis
from scheduler.view.metric_table import LAUNCH_RESULTS, METRICS, UnknownMetricError
from scheduler.view.redis_meter import RedisMeter, Spread, gather_counts
from scheduler.view.redis_view_cache import RedisViewCache
from tests.builders import NOW, a_lease, a_reservation, a_slot
from workers.metrics import LeaseholdCollector, Sources, collect, start_metrics

LAUNCH = {"pool": "linux", "offering": "c7g", "result": "success"}
NOWHERE = "redis://127.0.0.1:1/0"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        # not declared
        ("leasehold_lunches_total", LAUNCH),
        # a missing label, an extra label, a misspelled label
        ("leasehold_launches_total", {"pool": "linux"}),
        ("leasehold_launches_total", LAUNCH | {"zone": "a"}),
        ("leasehold_ticks_total", {"results": "success"}),
        # a histogram, which has no `count`
        ("leasehold_tick_duration_seconds", {}),
    ],
)
def test_only_declared_metrics_are_counted(meter: Meter, name: str, labels: Mapping[str, str]) -> None:
    with pytest.raises(UnknownMetricError):
        meter.count(name, labels)


def test_a_counter_is_not_observed(meter: Meter) -> None:
    with pytest.raises(UnknownMetricError):
        meter.observe("leasehold_ticks_total", {"result": "success"}, 1.0)


def test_gathered_counts_are_sent_together_at_the_end(redis_url: str) -> None:
    client = make_redis(redis_url)
    meter = RedisMeter(client)
    labels = tuple(LAUNCH.values())

    def count_and_fail() -> None:
        meter.count("leasehold_launches_total", LAUNCH)
        meter.count("leasehold_launches_total", LAUNCH, 0.5)
        meter.observe("leasehold_tick_duration_seconds", {}, 0.25)
        assert meter.read().counters["leasehold_launches_total"].get(labels, 0.0) == 0
        raise StoreUnavailableError("away")

    with pytest.raises(StoreUnavailableError), gather_counts():
        count_and_fail()
    found = meter.read()
    assert found.counters["leasehold_launches_total"][labels] == 1.5
    assert found.histograms["leasehold_tick_duration_seconds"][()].sum == 0.25
    meter.count("leasehold_launches_total", LAUNCH)
    assert meter.read().counters["leasehold_launches_total"][labels] == 2.5


def test_counts_of_all_processes_are_summed(redis_url: str) -> None:
    def count() -> None:
        with make_redis(redis_url) as client:
            for _ in range(50):
                RedisMeter(client).count("leasehold_launches_total", LAUNCH, 0.5)

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with make_redis(redis_url) as client:
        tally = RedisMeter(client).read()
    assert tally.counters["leasehold_launches_total"] == {("linux", "c7g", "success"): 75.0}


def test_a_metric_without_a_count_is_zero(redis_client: redis.Redis) -> None:
    tally = RedisMeter(redis_client).read()
    assert tally.counters["leasehold_ticks_total"] == {("success",): 0.0, ("error",): 0.0}
    empty = Spread([0] * (len(METRICS["leasehold_tick_duration_seconds"].buckets) + 1))
    assert tally.histograms["leasehold_tick_duration_seconds"] == {(): empty}


def test_an_observation_falls_into_the_first_bucket_that_is_not_below_it(redis_client: redis.Redis) -> None:
    meter = RedisMeter(redis_client)
    bounds = METRICS["leasehold_tick_duration_seconds"].buckets
    for value in (0.0, bounds[0], bounds[1], 1e6):
        meter.observe("leasehold_tick_duration_seconds", {}, value)
    spread = meter.read().histograms["leasehold_tick_duration_seconds"][()]
    assert spread.counts == [2, 1, *[0] * (len(bounds) - 2), 1]
    assert spread.sum == pytest.approx(bounds[0] + bounds[1] + 1e6)


def test_a_count_that_cannot_be_written_raises_nothing() -> None:
    with make_redis(NOWHERE) as client:
        RedisMeter(client).count("leasehold_launches_total", LAUNCH)


def test_counts_of_another_version_are_ignored(redis_client: redis.Redis) -> None:
    nothing = RedisMeter(redis_client).read()
    redis_client.hset(
        "leasehold:metrics",
        mapping={
            '["leasehold_old_total",[],""]': 1,
            '["leasehold_launches_total",["linux"],""]': 1,
            '["leasehold_tick_duration_seconds",[],"99"]': 1,
        },
    )
    assert RedisMeter(redis_client).read() == nothing


@pytest.fixture
def store() -> Store:
    store = MemoryStore(lambda: NOW)
    with store.transaction() as transaction:
        fill(transaction)
    return store


def fill(transaction: Transaction) -> None:
    """Insert two slots and a reservation; the pool of one slot is not in the rules any more."""
    slots: list[Slot] = [a_slot("linux-1"), a_slot("old-1", state="draining")]
    transaction.save(slots)
    transaction.insert_reservations([a_reservation()])
    make_rules(transaction)


def make_rules(transaction: Transaction) -> None:
    """Save rules with a pool on EC2 and a static pool."""
    document: dict[str, Any] = {
        "pools": {
            "linux": {"system": "x86_64-linux", "max_slots": 2, "offerings": [{"name": "c7g"}, {"name": "m7g"}]},
            "desks": {"system": "x86_64-linux", "provider": "static"},
        }
    }
    transaction.save_rules(document, 0)


def scrape(
    store: Store, meter: RedisMeter, view_cache: RedisViewCache | None = None, *, per_slot: bool = False
) -> Samples:
    sources = Sources(store, meter.read, view_cache.read_report if view_cache else dict, per_slot=per_slot)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in collect(sources)
        for sample in family.samples
    }


def of(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def test_every_state_and_phase_is_exported_also_with_zero(store: Store, redis_client: redis.Redis) -> None:
    samples = scrape(store, RedisMeter(redis_client))
    slots = {labels: value for (name, labels), value in samples.items() if name == "leasehold_slots"}
    ones = {("linux", "ready"), ("old", "draining")}
    assert slots == {
        frozenset({("pool", pool), ("state", state)}): float((pool, state) in ones)
        for pool in ("linux", "desks", "old")
        for state in SLOT_STATES
    }
    for phase in PHASES:
        assert of(samples, "leasehold_reservations", phase=phase) == float(phase == "pending")


def test_every_outcome_of_every_offering_is_exported_from_the_start(store: Store, redis_client: redis.Redis) -> None:
    meter = RedisMeter(redis_client)
    meter.count("leasehold_launches_total", LAUNCH, 3)
    samples = scrape(store, meter)
    for result in LAUNCH_RESULTS:
        expected = 3.0 if result == "success" else 0.0
        launches = of(samples, "leasehold_launches_total", pool="linux", offering="c7g", result=result)
        assert launches == expected
        assert of(samples, "leasehold_launches_total", pool="linux", offering="m7g", result=result) == 0
        assert of(samples, "leasehold_launches_total", pool="desks", offering="", result=result) is None


def test_a_histogram_is_exported_with_cumulative_buckets(store: Store, redis_client: redis.Redis) -> None:
    meter = RedisMeter(redis_client)
    for seconds in (0.002, 0.02, 0.02, 100):
        meter.observe("leasehold_tick_duration_seconds", {}, seconds)
    samples = scrape(store, meter)
    name = "leasehold_tick_duration_seconds"
    assert of(samples, f"{name}_bucket", le="0.001") == 0
    assert of(samples, f"{name}_bucket", le="0.025") == 3
    assert of(samples, f"{name}_bucket", le="60.0") == 3
    assert of(samples, f"{name}_bucket", le="+Inf") == of(samples, f"{name}_count") == 4
    assert of(samples, f"{name}_sum") == pytest.approx(100.042)


def test_leadership_and_the_lag_of_the_view_are_exported_after_the_first_tick(
    store: Store, redis_client: redis.Redis
) -> None:
    meter, view_cache = RedisMeter(redis_client), RedisViewCache(redis_client)
    samples = scrape(store, meter, view_cache)
    assert of(samples, "leasehold_term") == 0
    assert of(samples, "leasehold_tick_age_seconds") is None
    assert of(samples, "leasehold_view_lag_seconds") is None
    with store.transaction() as transaction:
        transaction.note_tick(transaction.take_term("me"), NOW - 7)
    view_cache.write_report({"view_lag": 2.5})
    samples = scrape(store, meter, view_cache)
    assert of(samples, "leasehold_term") == 1
    assert of(samples, "leasehold_tick_age_seconds") == 7
    assert of(samples, "leasehold_view_lag_seconds") == 2.5


def test_many_observations_are_added_at_once(redis_client: redis.Redis) -> None:
    meter = RedisMeter(redis_client)
    meter.observe("leasehold_tick_duration_seconds", {}, 0.002, 0.02, 0.02)
    meter.observe("leasehold_tick_duration_seconds", {})
    spread = meter.read().histograms["leasehold_tick_duration_seconds"][()]
    assert sum(spread.counts) == 3
    assert spread.sum == pytest.approx(0.042)


def test_waiting_reservations_are_exported_as_the_last_tick_reported_them(
    store: Store, redis_client: redis.Redis
) -> None:
    meter, view_cache = RedisMeter(redis_client), RedisViewCache(redis_client)
    samples = scrape(store, meter, view_cache)
    for code in WAITING_CODES:
        assert of(samples, "leasehold_reservations_waiting", code=code) == 0
    assert of(samples, "leasehold_longest_wait_seconds") == 0
    codes = {"booting": 3, "at_quota": 2, "at_max_slots": 1}
    view_cache.write_report({"codes": codes, "longest_wait": 7.5, "at_quota": ["linux"]})
    samples = scrape(store, meter, view_cache)
    assert of(samples, "leasehold_reservations_waiting", code="at_quota") == 2
    assert of(samples, "leasehold_reservations_allocated_not_started") == 3
    assert of(samples, "leasehold_reservations_over_quota") == 3
    assert of(samples, "leasehold_longest_wait_seconds") == 7.5
    assert [of(samples, "leasehold_at_quota", pool=pool) for pool in ("linux", "desks")] == [1, 0]


def test_slots_are_exported_with_their_used_and_free_resources(redis_client: redis.Redis) -> None:
    store, meter = MemoryStore(lambda: NOW), RedisMeter(redis_client)
    with store.transaction() as transaction:
        make_rules(transaction)
        lease = a_lease("desks-1", resources={"cpus": 3})
        transaction.insert_reservations([a_reservation("r1", phase="leased", leases=(lease,))])
        slots = [
            a_slot("desks-1", resources={"cpus": 4, "gpus": 1}),
            a_slot("desks-2", resources={"cpus": 4}, last_seen=NOW - 181),
            a_slot("linux-1", price=0.5, since=NOW - 60),
            a_slot("linux-2", state="booting", price=0.25, since=NOW - 30),
        ]
        transaction.save(slots)
    meter.note_probes(["linux-1"], NOW - 40)
    samples = scrape(store, meter)
    assert [of(samples, f"leasehold_slots_{state}", pool="desks") for state in ("online", "offline")] == [1, 1]
    assert [of(samples, f"leasehold_slots_{state}", pool="linux") for state in ("online", "offline")] == [1, 0]
    assert of(samples, "leasehold_slots_price", pool="linux", state="booting") == 0.25
    assert of(samples, "leasehold_slots_price", pool="linux", state="launching") == 0
    for resource, used, free in (("cpus", 3, 5), ("gpus", 0, 1)):
        assert of(samples, "leasehold_pool_resources_used", pool="desks", resource=resource) == used
        assert of(samples, "leasehold_pool_resources_available", pool="desks", resource=resource) == free
    detailed, where = scrape(store, meter, per_slot=True), {"pool": "desks", "slot": "desks-1"}
    for resource, used, free in (("cpus", 3, 1), ("gpus", 0, 1)):
        assert of(detailed, "leasehold_slot_resources_used", resource=resource, **where) == used
        assert of(detailed, "leasehold_slot_resources_available", resource=resource, **where) == free
    assert of(samples, "leasehold_probe_age_seconds_max") == 40
    assert of(samples, "leasehold_time_to_ready_seconds_count", pool="linux") == 0


def test_the_number_of_series_grows_with_the_slots_only_by_a_setting(redis_client: redis.Redis) -> None:
    meter = RedisMeter(redis_client)

    def count_series(slots: int, *, per_slot: bool) -> int:
        store = MemoryStore(lambda: NOW)
        with store.transaction() as transaction:
            make_rules(transaction)
            transaction.save([a_slot(f"desks-{at}", resources={"cpus": 4, "gpus": 1}) for at in range(slots)])
        return len(scrape(store, meter, per_slot=per_slot))

    few, many = (count_series(slots, per_slot=False) for slots in (1, 1000))
    assert few == many
    assert count_series(1000, per_slot=True) == many + 4 * 1000


def keep_accounts(store: Store) -> None:
    """Insert three accounts: one with three leases and a claim, one without reservations, and a forgotten one."""
    with store.transaction() as transaction:
        make_rules(transaction)
        leases = {"r1": (0, "held"), "r2": (2, "revoking"), "r3": (5, "held"), "r4": (1, "claimed")}
        transaction.insert_reservations(
            [
                a_reservation(
                    name,
                    account="ci",
                    phase="pending" if state == "claimed" else "revoking" if state == "revoking" else "leased",
                    leases=(a_lease(f"linux-{name}", level=level, state=state),),
                )
                for name, (level, state) in leases.items()
            ]
        )
        transaction.save(
            [
                Account(id="ci", balance=(-1.5, 20.0, 0.0, 0.0, 0.25)),
                Account(id="lab"),
                Account(id="gone", forgotten=True, balance=(1.0,) * 5),
            ]
        )


def by_account(samples: Samples, name: str) -> dict[tuple[str, int], float]:
    found = {tuple(sorted(labels)): value for (other, labels), value in samples.items() if other == name}
    return {(labels[0][1], int(labels[1][1])): value for labels, value in found.items()}


def test_accounts_are_exported_at_every_level_also_with_zero(redis_client: redis.Redis) -> None:
    store, meter, view_cache = MemoryStore(lambda: NOW), RedisMeter(redis_client), RedisViewCache(redis_client)
    keep_accounts(store)
    samples = scrape(store, meter, view_cache)
    nothing = {(name, level): 0.0 for name in ("ci", "lab") for level in range(6)}
    paid = {key: 0.0 for key in nothing if key[1] < 5}
    assert by_account(samples, "leasehold_account_balance") == paid | {("ci", 0): -1.5, ("ci", 1): 20, ("ci", 4): 0.25}
    assert by_account(samples, "leasehold_account_leases") == nothing | {("ci", 0): 1, ("ci", 2): 1, ("ci", 5): 1}
    assert by_account(samples, "leasehold_account_waiting") == nothing
    assert by_account(samples, "leasehold_account_spent_total") == paid
    assert by_account(samples, "leasehold_preemptions_total") == paid
    assert by_account(samples, "leasehold_preempted_total") == {key: 0.0 for key in nothing if key[1] > 0}
    view_cache.write_report({"accounts": {"ci": [0, 7, 0, 0, 0, 0], "gone": [1] * 6}})
    meter.count("leasehold_account_spent_total", {"account": "ci", "level": "1"}, 2.5)
    meter.count("leasehold_preempted_total", {"account": "", "level": "5"})
    samples = scrape(store, meter, view_cache)
    assert by_account(samples, "leasehold_account_waiting") == nothing | {("ci", 1): 7}
    assert by_account(samples, "leasehold_account_spent_total") == paid | {("ci", 1): 2.5}
    assert of(samples, "leasehold_preempted_total", account="", level="5") == 1


class BrokenStore(MemoryStore):
    def load_rules(self) -> Any:
        raise StoreUnavailableError("the database is away")


def test_metrics_of_an_unreachable_part_are_missing_and_leasehold_up_is_zero(
    store: Store, redis_client: redis.Redis
) -> None:
    with make_redis(NOWHERE) as nowhere:
        samples = scrape(store, RedisMeter(nowhere), RedisViewCache(nowhere))
    assert of(samples, "leasehold_up", part="redis") == 0
    assert of(samples, "leasehold_up", part="database") == 1
    assert of(samples, "leasehold_reservations", phase="pending") == 1
    samples = scrape(BrokenStore(lambda: NOW), RedisMeter(redis_client))
    assert of(samples, "leasehold_up", part="redis") == 1
    assert of(samples, "leasehold_up", part="database") == 0
    assert of(samples, "leasehold_ticks_total", result="success") == 0
    assert of(samples, "leasehold_reservations", phase="pending") is None


@pytest.fixture
def address(store: Store, redis_client: redis.Redis) -> Iterator[str]:
    server, thread = start_metrics(LeaseholdCollector(Sources(store, RedisMeter(redis_client).read)), "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()
    thread.join()


def test_prometheus_can_read_what_is_served(address: str) -> None:
    with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - the server of this test
        families = {family.name for family in text_string_to_metric_families(answer.read().decode())}
    assert families >= {"leasehold_slots", "leasehold_reservations", "leasehold_launches", "leasehold_up"}


def test_a_pool_without_offerings_exports_its_launches_under_an_empty_name(redis_client: redis.Redis) -> None:
    store = MemoryStore(lambda: NOW)
    with store.transaction() as transaction:
        transaction.save_rules({"pools": {"linux": {"system": "x86_64-linux", "max_slots": 1}}}, 0)
    samples = scrape(store, RedisMeter(redis_client))
    assert of(samples, "leasehold_launches_total", pool="linux", offering="", result="success") == 0


_LAUNCHING = {("pool", "linux")}
_ANY_POOL = ({("pool", "linux")}, {("pool", "desks")})
PARITY: dict[str, list[set[tuple[str, str]]]] = {
    # Arvados
    "leasehold_reservations_allocated_not_started": [set()],
    "leasehold_reservations_over_quota": [set()],
    "leasehold_longest_wait_seconds": [set()],
    "leasehold_at_quota": [*_ANY_POOL],
    "leasehold_slots_price": [{*pool, ("state", state)} for pool in _ANY_POOL for state in SLOT_STATES],
    "leasehold_boot_outcomes_total": [
        {*_LAUNCHING, ("outcome", outcome)} for outcome in ("success", "failure", "aborted", "disappeared")
    ],
    "leasehold_slot_disappeared_total": [{("state", each)} for each in ("booting", "binding", "ready", "draining")],
    "leasehold_time_to_ready_seconds_count": [_LAUNCHING],
    "leasehold_probe_age_seconds_max": [set()],
    # Orchard
    "leasehold_time_to_lease_seconds_count": [set()],
    "leasehold_slots_online": [*_ANY_POOL],
    "leasehold_slots_offline": [*_ANY_POOL],
    "leasehold_ends_refused": [*_ANY_POOL],
    "leasehold_reservations": [{("phase", phase)} for phase in PHASES],
    "leasehold_boot_seconds_count": [_LAUNCHING],
}
"""The metrics that Arvados and Orchard have, with every value of their labels."""


def test_at_the_start_every_value_of_every_label_is_zero(redis_client: redis.Redis) -> None:
    store = MemoryStore(lambda: NOW)
    with store.transaction() as transaction:
        make_rules(transaction)
    samples = scrape(store, RedisMeter(redis_client), RedisViewCache(redis_client))
    for name, labels in PARITY.items():
        found = {labels: value for (other, labels), value in samples.items() if other == name}
        assert found == {frozenset(each): 0.0 for each in labels}, name
