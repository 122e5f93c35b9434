"""The table METRICS of every counter and histogram: its name, its labels, and the label values that are reported as 0
from the start.
"""

from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

from scheduler.model.runs import WHYS
from scheduler.ports import Category, Defect
from scheduler.protocol.names import QUEUE_NAMES


class UnknownMetricError(ValueError):
    """Raised when METRICS has no metric with this name, kind and labels. The cause is an error in this program."""


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """A counter or histogram that the program declares, with the names of its labels.

    `zeros`: label values for which 0 is reported before anything is counted. `buckets`: upper bounds of a histogram's
    buckets, ascending and inclusive; a last bucket without a bound is added.
    """

    name: str
    kind: Literal["counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    zeros: tuple[tuple[str, ...], ...] = ()
    buckets: tuple[float, ...] = ()


LAUNCH_RESULTS: Final[tuple[str, ...]] = ("success", *get_args(Category), "aborted")
"""The results of a launch request, as a label of metrics: `success`, the category of the cloud's error, or `aborted`
(the machine was no longer wanted).
"""
BOOT_OUTCOMES: Final = ("success", "failure", "aborted", "disappeared")
"""How the boot of a machine ended, as a label of metrics: it became ready (`success`), timed out (`failure`), was no
longer wanted (`aborted`), or disappeared.
"""
NOTICE_KINDS: Final = ("interruption", "rebalance", "maintenance")
"""The kinds of EC2's notices that change a slot, as a label of metrics: its machine will be interrupted, has a higher
risk of interruption, or will be stopped, restarted or retired.
"""
REFUSED: Final = "leasehold_messages_refused_total"
EXPIRED: Final = "leasehold_expired_messages_total"
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_LONG: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0)


def _counter(name: str, about: str, *labels: str, zeros: tuple[tuple[str, ...], ...] = ()) -> Metric:
    return Metric(name=name, kind="counter", help=about, labels=labels, zeros=zeros)


def _histogram(
    name: str, about: str, *labels: str, zeros: tuple[tuple[str, ...], ...] = (), buckets: tuple[float, ...] = _SECONDS
) -> Metric:
    return Metric(name=name, kind="histogram", help=about, labels=labels, zeros=zeros, buckets=buckets)


_ALL: Final = (
    _counter("leasehold_launches_total", "Attempts at launches by outcome", "pool", "offering", "result"),
    _counter("leasehold_starts_total", "Attempts at starts of stopped machines", "pool", "offering", "result"),
    _counter(
        "leasehold_boot_outcomes_total",
        "Outcomes of machines between their launch and their first service",
        *("pool", "outcome"),
    ),
    _counter(
        "leasehold_slot_disappeared_total",
        "Machines that were gone without a termination, by the state of their slot",
        "state",
        zeros=(("booting",), ("binding",), ("ready",), ("draining",)),
    ),
    _counter(
        "leasehold_interruptions_total",
        "Spot interruptions, rebalance hints and scheduled changes that changed a slot; repeats are not counted",
        *("pool", "kind"),
    ),
    _counter(
        "leasehold_state_changes_total",
        "Changes of machines' states that EC2 reported and that caused a check of their slot",
        *("pool", "state"),
    ),
    _counter(
        "leasehold_ticks_total",
        "Ticks by outcome; a tick that fails is counted, too",
        "result",
        zeros=(("success",), ("error",)),
    ),
    _histogram("leasehold_tick_duration_seconds", "Duration of a tick", zeros=((),)),
    _histogram("leasehold_time_to_lease_seconds", "Time from submit to the first lease", zeros=((),), buckets=_LONG),
    _histogram(
        "leasehold_boot_seconds", "Time from EC2's answer to a launch until the machine runs", "pool", buckets=_LONG
    ),
    _histogram(
        "leasehold_time_to_ready_seconds",
        "Time from EC2's answer to a launch until the machine serves",
        "pool",
        buckets=_LONG,
    ),
    _counter(
        "leasehold_view_repairs_total",
        "Changes that the view lacked and that a comparison with the database (look or audit) published; rebuilds",
        "found",
        zeros=(("look",), ("audit",), ("rebuild",)),
    ),
    _counter(
        "leasehold_view_load_failures_total",
        "Loads and rebuilds of the view that failed and were tried again",
        zeros=((),),
    ),
    _counter(
        "leasehold_cut_ticks_total",
        "Ticks whose commit lasted too long and stopped between chunks; the next tick goes on",
        zeros=((),),
    ),
    _counter("leasehold_account_spent_total", "What accounts paid for leases, by level", "account", "level"),
    _counter(
        "leasehold_preemptions_total",
        "Reservations that were preempted, by the account that gained the slot and the level at which it pays",
        *("account", "level"),
    ),
    _counter(
        "leasehold_preempted_total",
        "Reservations that were preempted, by the account that they ran for and their level",
        *("account", "level"),
    ),
    _counter(
        REFUSED,
        "Messages that were refused without an answer, by the kind of their defect",
        *("queue", "defect"),
        zeros=tuple((queue, defect) for queue in QUEUE_NAMES for defect in get_args(Defect)),
    ),
    _counter(
        "leasehold_heartbeats_refused_total",
        "Heartbeats of hosts that were ignored, counted at each reading, by reason",
        "reason",
        zeros=tuple((each,) for each in ("unsigned", "signature", "copy", "garbage", "machine")),
    ),
    _counter(
        "leasehold_command_outcomes_total",
        "Commands on leases that ended, by how: the reports of their hosts",
        "why",
        zeros=tuple((why,) for why in WHYS),
    ),
    _counter(
        "leasehold_requests_total",
        "Requests (each document of a list counts) by role, principal and result; unsigned ones have no principal",
        *("role", "principal", "result"),
    ),
    _counter(
        "leasehold_unsigned_messages_total",
        "Messages without a signature that were accepted in access.mode = warn",
        "queue",
        zeros=tuple((queue,) for queue in QUEUE_NAMES),
    ),
    _counter(
        EXPIRED,
        "Messages that were dropped because they expired before a worker took them",
        "queue",
        zeros=tuple((queue,) for queue in QUEUE_NAMES),
    ),
    _counter(
        "leasehold_shed_requests_total",
        "Requests that were answered with retry_after because too many were queued; none of them was accepted",
        "verb",
        zeros=(("leases",), ("register",), ("submit",), ("renew",)),
    ),
    _counter(
        "leasehold_skipped_requests_total",
        "Requests that were not carried out: copies of a request that runs or was answered, and abandoned questions",
        "reason",
        zeros=(("copy",), ("abandoned",)),
    ),
    _counter(
        "leasehold_set_aside_keys_total",
        "Keys of Redis renamed for a wrong type or unreadable contents",
        "key",
    ),
    _histogram("leasehold_task_seconds", "Time that a Celery task took, by outcome", "task", "result"),
)
METRICS: Final[dict[str, Metric]] = {metric.name: metric for metric in _ALL}


def find_label_values(name: str, kind: Literal["counter", "histogram"], labels: Mapping[str, str]) -> list[str]:
    """Return the values of a metric's labels in the order in which METRICS declares the labels.

    Raises UnknownMetricError unless METRICS has a metric with this name and kind and exactly these labels.
    """
    metric = METRICS.get(name)
    if metric is None or metric.kind != kind or set(metric.labels) != set(labels):
        raise UnknownMetricError(f"no {kind} {name} with the labels {sorted(labels)} is declared in METRICS")
    return [labels[label] for label in metric.labels]
