"""The metrics for Prometheus: gauges computed from SQL, and counters that all processes add up in Redis."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from threading import Thread
from typing import Any, Protocol
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from leasehold.common.clock import ProcessOffset
from scheduler.model.accounts import Account
from scheduler.model.rules import Rules
from scheduler.model.transitions import PHASES, SLOT_STATES
from scheduler.ports import (
    DatabaseWentBackError,
    ForeignClusterError,
    Store,
    StoreUnavailableError,
    ViewUnavailableError,
)
from scheduler.view.metric_table import BOOT_OUTCOMES, LAUNCH_RESULTS, METRICS, NOTICE_KINDS, Metric
from scheduler.view.redis_meter import Labels, Spread, Tally
from workers.clock_watch import measure_clocks, measure_reference
from workers.gauges import list_holders, measure_fleet, measure_probe_age, measure_waits
from workers.gauges_of_accounts import add_zeros, measure_account_waits, measure_accounts
from workers.queue_watch import WaitingMessages, measure_queues

LAUNCHES, BOOTS = "leasehold_launches_total", "leasehold_boot_outcomes_total"
INTERRUPTIONS = "leasehold_interruptions_total"
POOL_TIMES = ("leasehold_boot_seconds", "leasehold_time_to_ready_seconds")


class MeterReader(Protocol):
    """Reads the counts of all processes."""

    def read(self) -> Tally:
        """Return all counts. Raises ViewUnavailableError without Redis."""


class ReportReader(Protocol):
    """Reads the report of the last tick."""

    def read_report(self) -> Mapping[str, Any]:
        """See ViewCache.read_report."""


class ClockReader(Protocol):
    """Reads the offsets of the processes' wall clocks."""

    def read(self) -> Sequence[ProcessOffset]:
        """See ClockWatch.read."""


class QueueReader(Protocol):
    """Reads the queues of the broker."""

    def read(self) -> Mapping[str, WaitingMessages]:
        """Return the messages that wait in each queue. Raises ViewUnavailableError without the broker."""


def collect(
    store: Store,
    meter: MeterReader,
    reports: ReportReader | None = None,
    queues: QueueReader | None = None,
    clocks: ClockReader | None = None,
) -> Iterator[Family]:
    """Yield all families of one scrape. Without SQL or Redis, its families are missing and its `leasehold_up` is 0."""
    gauges, rules, accounts = _read_gauges(store)
    probed, counts = _read_counts(meter, rules, accounts)
    yield from (*gauges, *counts, *_read_report(reports, rules, accounts), *_read_queues(queues), *_read_clocks(clocks))
    if rules is not None and probed is not None:
        yield measure_probe_age(store, rules, probed)
    yield _describe_up(database=rules is not None, redis=bool(counts))


def _describe_up(*, database: bool, redis: bool) -> Family:
    up = GaugeMetricFamily("leasehold_up", "Whether the database and Redis could be read", labels=["part"])
    up.add_metric(["database"], float(database))
    up.add_metric(["redis"], float(redis))
    return up


class LeaseholdCollector(Collector):
    """Reads the sources at every scrape, so that no process exports outdated values.

    `check` raises ForeignClusterError if the process must end: `refuse` then gets the error, and the scrape has only
    `leasehold_up` with 0. Other errors of the store count as an unavailable database.
    """

    def __init__(
        self,
        store: Store,
        meter: MeterReader,
        reports: ReportReader | None = None,
        queues: QueueReader | None = None,
        clocks: ClockReader | None = None,
        *,
        check: Callable[[], object] = lambda: None,
        refuse: Callable[[ForeignClusterError], object] = lambda _: None,
    ) -> None:
        self._store, self._meter = store, meter
        self._reports, self._queues, self._clocks = reports, queues, clocks
        self._check, self._refuse = check, refuse

    def collect(self) -> Iterator[Family]:
        """See `collect`."""
        try:
            self._check()
        except ForeignClusterError as error:
            self._refuse(error)
            return iter([_describe_up(database=False, redis=False)])
        except DatabaseWentBackError:
            return iter([_describe_up(database=False, redis=True)])
        except StoreUnavailableError:
            pass  # `collect` omits the families of the database
        return collect(self._store, self._meter, self._reports, self._queues, self._clocks)

    def describe(self) -> list[Family]:
        """Return nothing: registering the collector must read neither SQL nor Redis."""
        return []


def start_metrics(
    store: Store,
    meter: MeterReader,
    host: str,
    port: int,
    reports: ReportReader | None = None,
    queues: QueueReader | None = None,
    clocks: ClockReader | None = None,
) -> tuple[WSGIServer, Thread]:
    """Serve `/metrics` in a thread; port 0 takes any free one. `host` should be loopback, as there is no password.

    Stop it by the server's `shutdown()` and `server_close()`. Raises OSError if the port is taken.
    """
    return _start(LeaseholdCollector(store, meter, reports, queues, clocks), host, port)


def _start(collector: LeaseholdCollector, host: str, port: int) -> tuple[WSGIServer, Thread]:
    registry = CollectorRegistry()
    registry.register(collector)
    return start_http_server(port, addr=host, registry=registry)


def serve_metrics(
    store: Store,
    meter: MeterReader,
    host: str = "127.0.0.1",
    port: int = 9108,
    reports: ReportReader | None = None,
    queues: QueueReader | None = None,
    clocks: ClockReader | None = None,
    *,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Serve `/metrics` until the process is stopped. Raises OSError if the port is taken, and a ForeignClusterError of
    `check`.
    """
    refused: list[ForeignClusterError] = []

    def refuse(error: ForeignClusterError) -> None:
        refused.append(error)
        # In a thread, because shutdown() waits for the server's loop, which still has to answer this scrape.
        Thread(target=server.shutdown).start()

    collector = LeaseholdCollector(store, meter, reports, queues, clocks, check=check, refuse=refuse)
    server, thread = _start(collector, host, port)
    thread.join()
    server.server_close()
    if refused:
        raise refused[0]


def _read_gauges(store: Store) -> tuple[list[Family], Rules | None, list[Account]]:
    try:
        rules = store.load_rules().rules
        accounts = [account for account in store.find_accounts() if not account.forgotten]
        held = list_holders(store)
        counted = [_count_slots(store, rules), _count_reservations(store), *_measure_leadership(store)]
        counted += measure_reference(store.read_cluster().reference_offset)
        gauges = [*counted, *measure_fleet(store, rules, held), *measure_accounts(accounts, held)]
    except StoreUnavailableError:
        return [], None, []
    return gauges, rules, accounts


def _measure_leadership(store: Store) -> Iterator[Family]:
    leader_term = store.load_leader_term()
    yield GaugeMetricFamily("leasehold_term", "Number of the present leadership; it only grows", leader_term.term)
    if leader_term.ticked_at:
        age = max(0.0, store.now() - leader_term.ticked_at)
        yield GaugeMetricFamily("leasehold_tick_age_seconds", "Time since the last tick was committed", age)


def _read_report(reports: ReportReader | None, rules: Rules | None, accounts: Sequence[Account]) -> Iterator[Family]:
    """Yield the report of the last tick. Without a tick since the start or a flush of Redis it has no view lag."""
    try:
        report = reports.read_report() if reports else {}
    except ViewUnavailableError:
        return
    yield from measure_waits(report, rules)
    yield measure_account_waits(report, accounts)
    if "view_lag" in report:
        about = "Age of the oldest committed change that the view lacked at the leader's last check; 0 = it lacked none"
        yield GaugeMetricFamily("leasehold_view_lag_seconds", about, float(report["view_lag"]))


def _read_queues(queues: QueueReader | None) -> Iterator[Family]:
    try:
        found = queues.read() if queues else {}
    except ViewUnavailableError:
        return
    yield from measure_queues(found)


def _read_clocks(clocks: ClockReader | None) -> Iterator[Family]:
    try:
        found = clocks.read() if clocks else []
    except ViewUnavailableError:
        return
    yield from measure_clocks(found)


def _count_slots(store: Store, rules: Rules) -> Family:
    found = Counter((slot.pool, slot.state) for slot in store.find_slots())
    family = GaugeMetricFamily("leasehold_slots", "Slots by pool and state", labels=["pool", "state"])
    for pool in sorted({*rules.pools, *(pool for pool, _ in found)}):
        for state in SLOT_STATES:
            family.add_metric([pool, state], found[pool, state])
    return family


def _count_reservations(store: Store) -> Family:
    found = store.count_phases()
    family = GaugeMetricFamily("leasehold_reservations", "Reservations by phase", labels=["phase"])
    for phase in PHASES:
        family.add_metric([phase], found.get(phase, 0))
    return family


def _read_counts(
    meter: MeterReader, rules: Rules | None, accounts: Sequence[Account]
) -> tuple[dict[str, float] | None, list[Family]]:
    """Return the last answer of each slot's machine (None without Redis) and the families of all counts."""
    try:
        tally = meter.read()
    except ViewUnavailableError:
        return None, []
    if rules is not None:
        # Zeros for all labels: Prometheus sees the first increase of a counter only if it has seen 0 before.
        launches = ((LAUNCHES, each) for each in _launches_of(rules))
        for name, labels in [*launches, *_boots_of(rules), *_interruptions_of(rules)]:
            tally.counters[name].setdefault(labels, 0.0)
        for name in POOL_TIMES:
            for pool in _launching_pools(rules):
                tally.histograms[name].setdefault((pool,), Spread([0] * (len(METRICS[name].buckets) + 1)))
        add_zeros(tally, accounts)
    counters = [_counter(METRICS[name], values) for name, values in tally.counters.items()]
    return tally.probed, [*counters, *(_histogram(METRICS[name], values) for name, values in tally.histograms.items())]


def _launches_of(rules: Rules) -> Iterator[Labels]:
    """Yield every outcome of every offering of the pools that launch; "" is the offering of a pool without a list."""
    for name, pool in rules.pools.items():
        offerings = list(pool.offering_by_key) or [""]
        if pool.provider == "ec2":
            yield from ((name, offering, result) for offering in offerings for result in LAUNCH_RESULTS)


def _launching_pools(rules: Rules) -> list[str]:
    return [name for name, pool in rules.pools.items() if pool.is_elastic]


def _boots_of(rules: Rules) -> Iterator[tuple[str, Labels]]:
    """Yield every outcome of a boot in every pool that launches."""
    for name, pool in rules.pools.items():
        if pool.provider == "ec2":
            yield from ((BOOTS, (name, outcome)) for outcome in BOOT_OUTCOMES)


def _interruptions_of(rules: Rules) -> Iterator[tuple[str, Labels]]:
    """Yield both kinds of notices for the pools that launch."""
    for name, pool in rules.pools.items():
        if pool.provider == "ec2":
            yield from ((INTERRUPTIONS, (name, kind)) for kind in NOTICE_KINDS)


def _counter(metric: Metric, values: dict[Labels, float]) -> Family:
    family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in sorted(values.items()):
        family.add_metric(labels, value)
    return family


def _histogram(metric: Metric, values: dict[Labels, Spread]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    bounds = [*map(str, metric.buckets), "+Inf"]
    for labels, spread in sorted(values.items()):
        buckets = list(zip(bounds, accumulate(spread.counts), strict=True))
        family.add_metric(labels, buckets, spread.sum)
    return family
