"""The public package: the client for producers, the command line and the embedded stack.

A producer needs only `from leasehold import Client`. This import loads neither `tasks`, `scheduler` and `workers` nor
their dependencies.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leasehold.errors import (
    BadCredentials,
    Ended,
    LeaseholdError,
    NoStack,
    NotAnswered,
    Refused,
    Unavailable,
    Unknown,
    UntrustedFolder,
)

if TYPE_CHECKING:
    from leasehold.client import Client
    from leasehold.client.async_client import AsyncClient
    from leasehold.client.lease import Lease

    __version__: str

__all__ = [
    "AsyncClient",
    "BadCredentials",
    "Client",
    "Ended",
    "Lease",
    "LeaseholdError",
    "NoStack",
    "NotAnswered",
    "Refused",
    "Unavailable",
    "Unknown",
    "UntrustedFolder",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import the clients and `Lease` on first use, because importing redis takes longer than most programs that only
    need the errors.

    `__version__` is the version of the installed distribution.
    """
    match name:
        case "Client" | "Lease" | "AsyncClient":
            return getattr(import_module("leasehold.client"), name)
        case "__version__":
            from importlib.metadata import version  # noqa: PLC0415 - most programs do not need it

            return version("leasehold")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
