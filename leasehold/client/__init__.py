"""The client for producers and holders: submit reservations, wait for them, hold leases and read the view (a copy of
the stack's rows in Redis). Public names: `Client`, `AsyncClient`, `Lease`. Each is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leasehold.client.async_client import AsyncClient
    from leasehold.client.client import Client
    from leasehold.client.lease import Lease

__all__ = ["AsyncClient", "Client", "Lease"]

_MODULES = {"AsyncClient": "async_client", "Client": "client", "Lease": "lease"}


def __getattr__(name: str) -> Any:
    """Import and return the public name `name` of this package. The import waits until the name is first used, because
    importing redis and kombu takes longer than most commands run. Raise AttributeError for any other name.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
