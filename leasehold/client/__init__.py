"""The client of producers and holders: submit, wait, hold a lease, read the view.

Public names: `Client`, `AsyncClient`, `Lease`. Each is imported when it is first used.
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
    """Import a public name on first use: redis and kombu take longer to import than most commands run."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
