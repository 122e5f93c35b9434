"""A program that runs the commands of one lease, as the agent of a host does: `python -m tests.work.small_agent FOLDER
RUN TTL SCRIPT`. Tests kill and stop it. Its scheduler is in a file of the folder. It prints its events.
"""

import json
import sys
import time
from pathlib import Path

from leasehold.work.command import HostIdentity
from tests.work.fake_scheduler import FakeScheduler
from tests.work.runner_host import RunnerHost


def main(folder: Path, run: str, ttl: float, script: str) -> None:
    scheduler = FakeScheduler(HostIdentity("lab-1", "m1", run), folder / "scheduler.json")
    scheduler.ttl = ttl
    key = scheduler.lease("r1", ["sh", "-c", script])
    host = RunnerHost(folder, scheduler)
    shown = 0
    while True:
        host.look()
        for event in host.events[shown:]:
            sys.stdout.write(json.dumps(event) + "\n")
            sys.stdout.flush()
            shown += 1
        if key in scheduler.outcomes:
            sys.stdout.write(json.dumps({"event": "outcome", **scheduler.describe(key)}) + "\n")
            sys.stdout.flush()
            host.runner.close()
            return
        time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4])
