"""The public package: the client for producers, the command line and the embedded stack.

A producer needs only `from leasehold import Client`. `import leasehold` loads nothing of `tasks`, `workers` and
`scheduler` but at most the ground floor, `scheduler.protocol`, and none of the libraries that they need. All types that
annotations of the client's methods and results name are importable from here, too.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from leasehold.errors import (
    BadCredentials,
    CannotBeServed,
    Ended,
    Fault,
    LeaseholdError,
    NoStack,
    NotAnswered,
    Overloaded,
    Refused,
    Unavailable,
    Unknown,
    UntrustedFolder,
)

if TYPE_CHECKING:
    from leasehold.canaries import Probe
    from leasehold.client.async_client import AsyncClient
    from leasehold.client.client import Client
    from leasehold.client.core.commands import AccountFields
    from leasehold.client.core.hosts import AsyncHints, AsyncHosts, Printed
    from leasehold.client.core.lease import AsyncLease, AsyncLost
    from leasehold.client.core.watch import AsyncWatch, AsyncWatches
    from leasehold.client.display import Table
    from leasehold.client.hosts import Hosts
    from leasehold.client.lease import Lease, Lost
    from leasehold.client.lease_changes import Change
    from leasehold.client.models import (
        Account,
        Answer,
        Command,
        Component,
        Condition,
        Conditions,
        Execution,
        Explanation,
        Host,
        Hosted,
        LeaseKey,
        Note,
        Placement,
        Request,
        Reservation,
        RunState,
        RunTimes,
        Slot,
        SmallestChange,
        Taken,
        Wait,
    )
    from leasehold.client.ports import Hints, Joined
    from leasehold.client.reservation_fields import CallbackFields, ComponentFields, ReservationFields, Run
    from leasehold.client.rules import (
        AccountLoss,
        AccountWait,
        Departure,
        Ending,
        NextTick,
        RuleChange,
        RulesApplied,
        RulesInForce,
        RulesPreview,
        RulesVersion,
        TwoCounts,
        Unservable,
    )
    from leasehold.client.watch import Watch
    from scheduler.protocol.clock import ProcessOffset

    __version__: str

__all__ = [
    "Account",
    "AccountFields",
    "AccountLoss",
    "AccountWait",
    "Answer",
    "AsyncClient",
    "AsyncHints",
    "AsyncHosts",
    "AsyncLease",
    "AsyncLost",
    "AsyncWatch",
    "AsyncWatches",
    "BadCredentials",
    "CallbackFields",
    "CannotBeServed",
    "Change",
    "Client",
    "Command",
    "Component",
    "ComponentFields",
    "Condition",
    "Conditions",
    "Departure",
    "Ended",
    "Ending",
    "Execution",
    "Explanation",
    "Fault",
    "Hints",
    "Host",
    "Hosted",
    "Hosts",
    "Joined",
    "Lease",
    "LeaseKey",
    "LeaseholdError",
    "Lost",
    "NextTick",
    "NoStack",
    "NotAnswered",
    "Note",
    "Overloaded",
    "Placement",
    "Printed",
    "Probe",
    "ProcessOffset",
    "Refused",
    "Request",
    "Reservation",
    "ReservationFields",
    "RuleChange",
    "RulesApplied",
    "RulesInForce",
    "RulesPreview",
    "RulesVersion",
    "Run",
    "RunState",
    "RunTimes",
    "Slot",
    "SmallestChange",
    "Table",
    "Taken",
    "TwoCounts",
    "Unavailable",
    "Unknown",
    "Unservable",
    "UntrustedFolder",
    "Wait",
    "Watch",
    "__version__",
]
_NAMES: Final = {
    "canaries": ("Probe",),
    "client.async_client": ("AsyncClient",),
    "client.core.hosts": ("AsyncHints", "AsyncHosts", "Printed"),
    "client.core.lease": ("AsyncLease", "AsyncLost"),
    "client.core.watch": ("AsyncWatch", "AsyncWatches"),
    "client.client": ("Client",),
    "client.core.commands": ("AccountFields",),
    "client.display": ("Table",),
    "client.hosts": ("Hosts",),
    "client.lease": ("Lease", "Lost"),
    "client.lease_changes": ("Change",),
    "client.models": (
        "Account",
        "Answer",
        "Command",
        "Component",
        "Condition",
        "Conditions",
        "Execution",
        "Explanation",
        "Host",
        "Hosted",
        "LeaseKey",
        "Note",
        "Placement",
        "Request",
        "Reservation",
        "RunState",
        "RunTimes",
        "Slot",
        "SmallestChange",
        "Taken",
        "Wait",
    ),
    "client.ports": ("Hints", "Joined"),
    "client.reservation_fields": ("CallbackFields", "ComponentFields", "ReservationFields", "Run"),
    "client.rules": (
        "AccountLoss",
        "AccountWait",
        "Departure",
        "Ending",
        "NextTick",
        "RuleChange",
        "RulesApplied",
        "RulesInForce",
        "RulesPreview",
        "RulesVersion",
        "TwoCounts",
        "Unservable",
    ),
    "client.watch": ("Watch",),
}
"""Module of this package -> the names that are imported from it at their first use."""
_MODULES: Final = {
    **{name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names},
    "ProcessOffset": "scheduler.protocol.clock",
}


def __getattr__(name: str) -> Any:
    """Return a public name, imported at its first use, or `__version__`, the version of the installed distribution.

    The clients import redis, which is slow. A program that needs only the errors does not import redis. Raises
    AttributeError for any other name.
    """
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - most programs do not need it

        return version("leasehold")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
