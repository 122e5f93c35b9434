"""The embedded stack: Valkey, SQLite, the EC2 emulator and every process of the Procfile, on this machine.

`leasehold up` and `leasehold demo` run a `Stack`. Tests and benchmarks use one as a context manager.
"""

from leasehold.stack.configuration import StackError
from leasehold.stack.embedded import Stack

__all__ = ["Stack", "StackError"]
