"""What people type and import: the producer client, the command line, the embedded stack.

`from leasehold import Client` is all that a producer needs. It pulls in neither `tasks`, `scheduler` and
`workers` nor what they stand on.
"""

from importlib import import_module
from importlib.metadata import version
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
    """The clients and `Lease` on first use: importing redis takes longer than most programs that only want the errors.
    `__version__` is the version of the installed distribution.
    """
    match name:
        case "Client" | "Lease" | "AsyncClient":
            return getattr(import_module("leasehold.client"), name)
        case "__version__":
            return version("leasehold")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
