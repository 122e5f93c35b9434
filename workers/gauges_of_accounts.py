"""Gauges and zero counters of quota accounts: each account at every level, from its creation on."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from scheduler.model.accounts import FREE, PAID, Account, find_account
from scheduler.model.reservations import Reservation
from scheduler.view.redis_meter import Tally

LEVELS: Final = range(FREE + 1)
_BY_LEVEL: Final = ("account", "level")
SPENT: Final = "leasehold_account_spent_total"
PREEMPTIONS: Final = "leasehold_preemptions_total"
PREEMPTED: Final = "leasehold_preempted_total"


def measure_accounts(accounts: Sequence[Account], held: Sequence[Reservation]) -> Iterator[Family]:
    """Yield each account's balance and its running leases, by level. `held`: the reservations that hold leases."""
    balance = GaugeMetricFamily(
        "leasehold_account_balance", "Balance of an account after its last charge", labels=_BY_LEVEL
    )
    leases = GaugeMetricFamily("leasehold_account_leases", "Running leases of an account", labels=_BY_LEVEL)
    running = _count_running({account.id: account for account in accounts}, held)
    for account in accounts:
        for level in PAID:
            balance.add_metric([account.id, str(level)], account.balance[level])
        for level in LEVELS:
            leases.add_metric([account.id, str(level)], running[account.id, level])
    yield from (balance, leases)


def _count_running(accounts: Mapping[str, Account], held: Sequence[Reservation]) -> Counter[tuple[str, int]]:
    found: Counter[tuple[str, int]] = Counter()
    for row in held:
        account = find_account(accounts, row.request.account, row.sequence)
        if account is not None:
            found.update((account.id, lease.level) for lease in row.leases)
    return found


def measure_account_waits(report: Mapping[str, Any], accounts: Sequence[Account]) -> Family:
    """Return how many reservations waited for each account at the last tick, by the best level it could pay for."""
    about = "Waiting reservations of an account, by the best level that it could pay for; 5 = none"
    family = GaugeMetricFamily("leasehold_account_waiting", about, labels=_BY_LEVEL)
    counted: Mapping[str, list[int]] = report.get("accounts", {})
    for account in accounts:
        for level, count in zip(LEVELS, counted.get(account.id) or [0] * len(LEVELS), strict=True):
            family.add_metric([account.id, str(level)], count)
    return family


def add_zeros(tally: Tally, accounts: Sequence[Account]) -> None:
    """Add a zero for each counter of each account at every level that has no count yet."""
    for account in accounts:
        for level in PAID:
            for name in (SPENT, PREEMPTIONS):
                tally.counters[name].setdefault((account.id, str(level)), 0.0)
        for level in LEVELS[1:]:
            tally.counters[PREEMPTED].setdefault((account.id, str(level)), 0.0)
