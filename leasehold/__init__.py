"""The producer client, the command line and the embedded stack.

`from leasehold import Client` is all that a producer needs. It does not import boto3, SQLAlchemy or Celery's workers.
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
    """Import the clients and `Lease` at their first use, because the import of redis is slow and the errors do not need
    it. `__version__` is the version of the installed distribution.
    """
    match name:
        case "Client" | "Lease" | "AsyncClient":
            return getattr(import_module("leasehold.client"), name)
        case "__version__":
            return version("leasehold")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
