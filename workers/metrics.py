"""What Prometheus reads: gauges from SQL, and the counters that the processes add up in Redis."""

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
    """Whatever adds up the counts of all processes."""

    def read(self) -> Tally:
        """All that was counted. Raises ViewUnavailableError when it cannot be reached."""


class ReportReader(Protocol):
    """Whatever knows what the last tick said."""

    def read_report(self) -> Mapping[str, Any]:
        """See Board.read_report."""


class ClockReader(Protocol):
    """Whatever knows the wall clocks of the processes."""

    def read(self) -> Sequence[ProcessOffset]:
        """See ClockWatch.read."""


class QueueReader(Protocol):
    """Whatever knows the queues of the broker."""

    def read(self) -> Mapping[str, WaitingMessages]:
        """What waits in each queue. Raises ViewUnavailableError when the broker cannot be reached."""


def collect(
    store: Store,
    meter: MeterReader,
    reports: ReportReader | None = None,
    queues: QueueReader | None = None,
    clocks: ClockReader | None = None,
) -> Iterator[Family]:
    """All families of one scrape. Of SQL or Redis, what cannot be reached is left out; `leasehold_up` says so."""
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
    """Asks again at every scrape, so no process exports what it knew when it still led.

    `check` raises ForeignClusterError if the process must not go on: that is given to `refuse`, and the scrape has
    `leasehold_up` 0 alone. Other errors of the store count as a database that cannot be read.
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
            pass  # `collect` leaves out what comes from the database
        return collect(self._store, self._meter, self._reports, self._queues, self._clocks)

    def describe(self) -> list[Family]:
        """Nothing: registering it must read neither SQL nor Redis."""
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
    """Serve `/metrics` in a thread; port 0 takes any free one. `host` should be loopback: there is no password.

    End it with the server's `shutdown()` and `server_close()`. Raises OSError when the port is taken.
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
    """Serve `/metrics` until the process is told to end. Raises OSError when the port is taken, and the
    ForeignClusterError that `check` raised at a scrape.
    """
    refused: list[ForeignClusterError] = []

    def refuse(error: ForeignClusterError) -> None:
        refused.append(error)
        Thread(target=server.shutdown).start()  # it waits for the loop of the server, and this scrape is to be answered

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
    """What the last tick said. The lag is left out before the first one, and after a flush until the next: nobody has
    looked then.
    """
    try:
        report = reports.read_report() if reports else {}
    except ViewUnavailableError:
        return
    yield from measure_waits(report, rules)
    yield measure_account_waits(report, accounts)
    if "view_lag" in report:
        said = "Age of the oldest committed change that the view lacked when the leader last looked; 0 = it lacked none"
        yield GaugeMetricFamily("leasehold_view_lag_seconds", said, float(report["view_lag"]))


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
    """When each slot's machine answered last (None: Redis cannot be reached), and all that was counted."""
    try:
        tally = meter.read()
    except ViewUnavailableError:
        return None, []
    if rules is not None:
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
    """Every outcome of every offering of the pools that launch; "" stands for a pool that lists none."""
    for name, pool in rules.pools.items():
        offerings = list(pool.offering_by_key) or [""]
        if pool.provider == "ec2":
            yield from ((name, offering, result) for offering in offerings for result in LAUNCH_RESULTS)


def _launching_pools(rules: Rules) -> list[str]:
    return [name for name, pool in rules.pools.items() if pool.is_elastic]


def _boots_of(rules: Rules) -> Iterator[tuple[str, Labels]]:
    """Every outcome of a boot in every pool that launches."""
    for name, pool in rules.pools.items():
        if pool.provider == "ec2":
            yield from ((BOOTS, (name, outcome)) for outcome in BOOT_OUTCOMES)


def _interruptions_of(rules: Rules) -> Iterator[tuple[str, Labels]]:
    """Both kinds of notices for the pools that launch."""
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
