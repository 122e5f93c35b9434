"""The embedded stack: Valkey, SQLite, the EC2 emulator and every process of the Procfile, on this machine.

`leasehold up` and `leasehold demo` run a `Stack`. Tests and benchmarks use one as a context manager.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leasehold.stack.configuration import StackError
    from leasehold.stack.embedded import Stack

__all__ = ["Stack", "StackError"]


def __getattr__(name: str) -> Any:
    """Import `Stack` and `StackError` when they are used: commands that use another module of this package start no
    stack, and Alembic and the client of Redis take a while to import.
    """
    if name not in __all__:
        raise AttributeError(name)
    from leasehold.stack import configuration, embedded  # noqa: PLC0415 - see above

    return {"Stack": embedded.Stack, "StackError": configuration.StackError}[name]
