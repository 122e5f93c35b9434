"""The seams: what the operations need from the outside, as Protocols whose docstrings are the contract.

Whoever implements one reads nothing else; one suite of tests a port runs on every implementation.
Times are seconds since the epoch unless a name says otherwise.
"""

from scheduler.ports.bell import Bell, ForeignAddressError
from scheduler.ports.dispatcher import Dispatcher
from scheduler.ports.fleet import Category, CloudError, Fleet, LaunchOrder, Probe
from scheduler.ports.meter import Defect, Meter, RefusedMessage
from scheduler.ports.notices import INTERRUPTION_SECONDS, Message, Notice, NoticeFeed
from scheduler.ports.pulse import Heard, Pulse
from scheduler.ports.record import ClusterRecord, Remembered
from scheduler.ports.store import (
    Answered,
    AppliedRules,
    ClusterRow,
    ConflictError,
    DatabaseWentBackError,
    DeposedError,
    EventFilter,
    ForeignClusterError,
    ForeignMachineError,
    NotPermittedError,
    Outgoing,
    Pending,
    StaleWriteError,
    Stamp,
    Store,
    StoredPrincipal,
    StoredRules,
    StoreUnavailableError,
    Tenure,
    Transaction,
)
from scheduler.ports.view import Board, Lock, SetAside, ViewUnavailableError

__all__ = [
    "INTERRUPTION_SECONDS",
    "Answered",
    "AppliedRules",
    "Bell",
    "Board",
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
    "LaunchOrder",
    "Lock",
    "Message",
    "Meter",
    "NotPermittedError",
    "Notice",
    "NoticeFeed",
    "Outgoing",
    "Pending",
    "Probe",
    "Pulse",
    "RefusedMessage",
    "Remembered",
    "SetAside",
    "StaleWriteError",
    "Stamp",
    "Store",
    "StoreUnavailableError",
    "StoredPrincipal",
    "StoredRules",
    "Tenure",
    "Transaction",
    "ViewUnavailableError",
]
