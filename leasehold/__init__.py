"""What people type and import: the producer client, the command line, the embedded stack.

`from leasehold import Client` is all that a producer needs. It pulls in neither `tasks`, `scheduler` and
`workers` nor what they stand on.
"""

from typing import TYPE_CHECKING, Any

from leasehold.errors import Ended, LeaseholdError, NoStack, NotAnswered, Refused, Unavailable, Unknown

if TYPE_CHECKING:
    from leasehold.client import Client

__all__ = [
    "Client",
    "Ended",
    "LeaseholdError",
    "NoStack",
    "NotAnswered",
    "Refused",
    "Unavailable",
    "Unknown",
]


def __getattr__(name: str) -> Any:
    """`Client` on first use: importing redis takes longer than most programs that only want the errors."""
    if name == "Client":
        from leasehold.client import Client  # noqa: PLC0415 - the purpose of this function

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
