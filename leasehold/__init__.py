"""The public package: the client for producers, the command line and the embedded stack.

A producer needs only `from leasehold import Client`. This import does not load the packages `tasks`, `scheduler` and
`workers`, or the libraries that they need.
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
    """Return `Client`, `AsyncClient` or `Lease`, imported at the first use of the name, or `__version__`, the version
    of the installed distribution.

    The clients import redis, which is slow. A program that needs only the errors does not import redis. Raises
    AttributeError for any other name.
    """
    match name:
        case "Client" | "Lease" | "AsyncClient":
            return getattr(import_module("leasehold.client"), name)
        case "__version__":
            from importlib.metadata import version  # noqa: PLC0415 - most programs do not need it

            return version("leasehold")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
