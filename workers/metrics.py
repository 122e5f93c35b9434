"""The metrics for Prometheus: gauges that each scrape computes from the database, and counters that all processes add
up in Redis.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from threading import Thread
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from scheduler.model.accounts import Account
from scheduler.model.forecasts import Foreseen
from scheduler.model.rules import Rules
from scheduler.ports import (
    DatabaseWentBackError,
    ForeignClusterError,
    Store,
    StoreUnavailableError,
    ViewUnavailableError,
)
from scheduler.protocol.clock import ProcessOffset
from scheduler.view.metric_table import BOOT_OUTCOMES, LAUNCH_RESULTS, METRICS, NOTICE_KINDS, Metric
from scheduler.view.redis_meter import Labels, Spread, Tally
from workers.gauges import (
    add_zeros,
    make_gauge,
    measure_account_waits,
    measure_budgets,
    measure_clocks,
    measure_costs,
    measure_forecasts,
    measure_probe_age,
    measure_queues,
    measure_store,
    measure_waits,
)
from workers.queue_watch import WaitingMessages

LAUNCHES, BOOTS = "leasehold_launches_total", "leasehold_boot_outcomes_total"
INTERRUPTIONS = "leasehold_interruptions_total"
POOL_TIMES = ("leasehold_boot_seconds", "leasehold_time_to_ready_seconds")

Part = TypeVar("Part")


@dataclass(frozen=True)
class Sources:
    """What a scrape of the metrics reads: the database (`store`), and functions that read from Redis. `read_counts`
    returns the counters and histograms of all processes, `read_queues` the state of each Celery queue.

    Each of the functions raises ViewUnavailableError while its Redis is unavailable.
    """

    store: Store
    read_counts: Callable[[], Tally]
    read_report: Callable[[], Mapping[str, Any]] = dict
    """Function that returns the report of the last tick from the view in Redis."""
    read_queues: Callable[[], Mapping[str, WaitingMessages]] = dict
    read_clocks: Callable[[], Sequence[ProcessOffset]] = list
    """Function that returns by how much the wall clock of each process differs from cluster time."""
    read_forecasts: Callable[[], Foreseen | None] = lambda: None
    per_slot: bool = False
    """Whether there are gauges with samples for each slot (setting `metrics.per_slot`)."""


def collect(sources: Sources) -> Iterator[Family]:
    """Yield all metric families of one scrape. If the database or Redis is unavailable, the families that need the
    unavailable part are missing, and the sample of `leasehold_up` for this part is 0.
    """
    store, rules, accounts, gauges = sources.store, None, list[Account](), list[Family]()
    with suppress(StoreUnavailableError):
        loaded = store.load_rules().rules
        known = [account for account in store.find_accounts() if not account.forgotten]
        gauges = [*measure_store(store, loaded, known, per_slot=sources.per_slot), *measure_costs(store, loaded)]
        rules, accounts = loaded, known
    probed, counts = _read_counts(sources, rules, accounts)

    def measure_report(report: Mapping[str, Any]) -> Iterator[Family]:
        yield from measure_waits(report, rules)
        yield measure_account_waits(report, accounts)
        yield from measure_budgets(report)
        # Without a tick since the start or a flush of Redis the report has no view lag.
        if "view_lag" in report:
            yield GaugeMetricFamily(
                "leasehold_view_lag_seconds",
                "Age of the oldest committed change that the view lacked at the leader's last check; 0 = it lacked "
                "none",
                float(report["view_lag"]),
            )

    yield from (*gauges, *counts)
    yield from _measure(sources.read_report, measure_report)
    yield from _measure(sources.read_queues, measure_queues)
    yield from _measure(sources.read_clocks, measure_clocks)
    yield from _measure(sources.read_forecasts, measure_forecasts)
    if rules is not None and probed is not None:
        yield measure_probe_age(store, rules, probed)
    yield _describe_up(database=rules is not None, redis=bool(counts))


def _measure(read: Callable[[], Part], measure: Callable[[Part], Iterator[Family]]) -> Iterator[Family]:
    """Call `read`, and yield the metric families that `measure` makes from its result. Yield none if Redis is
    unavailable.
    """
    try:
        found = read()
    except ViewUnavailableError:
        return
    yield from measure(found)


def _describe_up(*, database: bool, redis: bool) -> Family:
    values = {("database",): float(database), ("redis",): float(redis)}
    return make_gauge("leasehold_up", "Whether the database and Redis could be read", ["part"], values)


class LeaseholdCollector(Collector):
    """The collector for the Prometheus library. It reads the database and Redis at every scrape, so that no process
    exports outdated values.

    `check`: a function that raises ForeignClusterError if database and Redis belong to different clusters. Then the
    function `refuse` is called with the error, to end the process, and the scrape has only `leasehold_up` with 0. Any
    other error of `check` counts as an unavailable database.
    """

    def __init__(
        self,
        sources: Sources,
        *,
        check: Callable[[], object] = lambda: None,
        refuse: Callable[[ForeignClusterError], object] = lambda _: None,
    ) -> None:
        self._sources, self._check, self._refuse = sources, check, refuse

    def collect(self) -> Iterator[Family]:
        """Yield all metric families of one scrape. The Prometheus library calls this method."""
        try:
            self._check()
        except ForeignClusterError as error:
            self._refuse(error)
            return iter([_describe_up(database=False, redis=False)])
        except DatabaseWentBackError:
            return iter([_describe_up(database=False, redis=True)])
        except StoreUnavailableError:
            pass  # `collect` omits the families of the database
        return collect(self._sources)

    def describe(self) -> list[Family]:
        """Return no metric families. The Prometheus library would otherwise call `collect`, and so read the database,
        when the collector is registered.
        """
        return []


def start_metrics(collector: LeaseholdCollector, host: str, port: int) -> tuple[WSGIServer, Thread]:
    """Serve `/metrics` in a thread, and return the server and the thread. Raises OSError if the port is taken.

    Port 0 takes any free port. `host` should be loopback, because there is no password. `shutdown()` and
    `server_close()` end the server.
    """
    registry = CollectorRegistry()
    registry.register(collector)
    return start_http_server(port, addr=host, registry=registry)


def serve_metrics(sources: Sources, host: str, port: int, check: Callable[[], object]) -> None:
    """Serve `/metrics` until the process is stopped. Raises OSError if the port is taken, and ForeignClusterError if
    `check` raises it during a scrape.
    """
    refused: list[ForeignClusterError] = []

    def refuse(error: ForeignClusterError) -> None:
        refused.append(error)
        # shutdown() runs in a thread, because it waits for the server's loop, which still has to answer this scrape.
        Thread(target=server.shutdown).start()

    server, thread = start_metrics(LeaseholdCollector(sources, check=check, refuse=refuse), host, port)
    thread.join()
    server.server_close()
    if refused:
        raise refused[0]


def _read_counts(
    sources: Sources, rules: Rules | None, accounts: Sequence[Account]
) -> tuple[dict[str, float] | None, list[Family]]:
    """Return (1) slot id -> time of the last answer of its machine to a probe, and (2) the metric families of all
    counters and histograms. Return (None, []) if Redis is unavailable.
    """
    try:
        tally = sources.read_counts()
    except ViewUnavailableError:
        return None, []
    if rules is not None:
        for name, pool in rules.pools.items():
            if not pool.is_elastic:
                continue
            # "" is the offering of a pool without a list.
            offerings = [key for key, each in pool.offering_by_key.items() if each.require is None] or [""]
            zeros: dict[str, list[Labels]] = {
                LAUNCHES: [(name, offering, result) for offering in offerings for result in LAUNCH_RESULTS],
                BOOTS: [(name, outcome) for outcome in BOOT_OUTCOMES],
                INTERRUPTIONS: [(name, kind) for kind in NOTICE_KINDS],
            }
            for metric, each in zeros.items():
                for labels in each:
                    tally.counters[metric].setdefault(labels, 0.0)
            for metric in POOL_TIMES:
                tally.histograms[metric].setdefault((name,), Spread([0] * (len(METRICS[metric].buckets) + 1)))
        add_zeros(tally, accounts)
    counters = [_counter(METRICS[name], values) for name, values in tally.counters.items()]
    return tally.probed, [*counters, *(_histogram(METRICS[name], values) for name, values in tally.histograms.items())]


def _counter(metric: Metric, values: dict[Labels, float]) -> Family:
    family = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in sorted(values.items()):
        family.add_metric(labels, value)
    return family


def _histogram(metric: Metric, values: dict[Labels, Spread]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    bounds = [*map(str, metric.buckets), "+Inf"]
    for labels, spread in sorted(values.items()):
        family.add_metric(labels, list(zip(bounds, accumulate(spread.counts), strict=True)), spread.sum)
    return family
