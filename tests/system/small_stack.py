"""`python -m tests.system.small_stack FOLDER`: print the pids of the started processes, and run until a signal."""

import json
import os
import sys
from pathlib import Path
from threading import Event

from testbed.processes import wait_for
from testbed.servers import start_own_postgresql
from testbed.stack import ROOT, Stack


class SmallStack(Stack):
    """A stack of Redis and a process with a child, to test that they end."""

    def _start(self) -> None:
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        family = self.start("family", "tests.system.family")
        wait_for(family.read_log, "the family")


def main(folder: Path) -> None:
    """Start the stack and a PostgreSQL server."""
    server = start_own_postgresql()
    try:
        with SmallStack(folder, {}) as stack:
            pids = {name: process.pid for name, process in stack.processes.items()}
            pids |= {"redis": stack.redis_server.pid, "postgresql": server.process.pid}
            sys.stdout.write(json.dumps(pids) + "\n")
            sys.stdout.flush()
            Event().wait()
    finally:
        server.remove()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
