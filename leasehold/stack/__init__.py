"""The embedded stack: Valkey, SQLite, the EC2 emulator and every process of the Procfile, on this machine.

`Stack` is what `leasehold up` and `leasehold demo` run; tests and benches use it as a context.
"""

from leasehold.stack.configuration import StackError
from leasehold.stack.embedded import Stack

__all__ = ["Stack", "StackError"]
