"""`python -m tests.e2e.small_stack FOLDER`: says which processes it has started, and stays until it is ended."""

import json
import sys
from pathlib import Path
from threading import Event

from tests.e2e.stack import Stack, a_pool
from tests.servers import start_own_postgresql


class SmallStack(Stack):
    """Redis, the emulator, and a worker with its children."""

    def _start_workers(self) -> None:
        self.start("reservations", "tasks.worker", "reservations")

    def _await_workers(self) -> None:
        self.await_canary("reservations")


def main(folder: Path) -> None:
    """Start it, with a PostgreSQL of its own."""
    server = start_own_postgresql()
    try:
        url = server.url(server.create_database())
        with SmallStack(folder, {"pools": {"linux": a_pool()}}, database_url=url) as stack:
            pids = {name: process.pid for name, process in stack.processes.items()}
            pids |= {"redis": stack.redis_server.pid, "postgresql": server.process.pid}
            sys.stdout.write(json.dumps(pids) + "\n")
            sys.stdout.flush()
            Event().wait()
    finally:
        server.remove()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
