"""The interfaces between operations and adapters, as Protocols. The docstrings are the contract for implementers.

One test suite for each port runs on all its implementations. Times are seconds since the epoch unless a name states
otherwise.
"""

from scheduler.ports.cluster_record import ClusterRecord, Remembered
from scheduler.ports.dispatcher import Dispatcher
from scheduler.ports.fleet import Category, CloudError, Fleet, LaunchOrder, Probe
from scheduler.ports.heartbeats import Heard, Heartbeats
from scheduler.ports.meter import Defect, Meter, RefusedMessage
from scheduler.ports.notices import INTERRUPTION_SECONDS, Message, Notice, NoticeFeed
from scheduler.ports.notifier import ForeignAddressError, Notifier
from scheduler.ports.store import (
    AppliedRules,
    ClusterRow,
    ConflictError,
    DatabaseWentBackError,
    DeposedError,
    EventFilter,
    ForeignClusterError,
    ForeignMachineError,
    LeaderTerm,
    NotPermittedError,
    OutboxMessage,
    Pending,
    RowVersion,
    StaleWriteError,
    Store,
    StoredAnswer,
    StoredPrincipal,
    StoredRules,
    StoreUnavailableError,
    Transaction,
)
from scheduler.ports.view import LeaderLock, SetAside, ViewCache, ViewUnavailableError

__all__ = [
    "INTERRUPTION_SECONDS",
    "AppliedRules",
    "Category",
    "CloudError",
    "ClusterRecord",
    "ClusterRow",
    "ConflictError",
    "DatabaseWentBackError",
    "Defect",
    "DeposedError",
    "Dispatcher",
    "EventFilter",
    "Fleet",
    "ForeignAddressError",
    "ForeignClusterError",
    "ForeignMachineError",
    "Heard",
    "Heartbeats",
    "LaunchOrder",
    "LeaderLock",
    "LeaderTerm",
    "Message",
    "Meter",
    "NotPermittedError",
    "Notice",
    "NoticeFeed",
    "Notifier",
    "OutboxMessage",
    "Pending",
    "Probe",
    "RefusedMessage",
    "Remembered",
    "RowVersion",
    "SetAside",
    "StaleWriteError",
    "Store",
    "StoreUnavailableError",
    "StoredAnswer",
    "StoredPrincipal",
    "StoredRules",
    "Transaction",
    "ViewCache",
    "ViewUnavailableError",
]
