"""End what is left of a command whose guard is dead or stopped: its process group, its cgroup, and the processes that
have its tag.
"""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from typing import Final

from leasehold.work import guard
from leasehold.work.records import Record

_PASSES: Final = 25
_PAUSE_SECONDS: Final = 0.04


def end_remains(record: Record, *, is_own: bool) -> int:
    """Kill the processes of a command. Return how many resist after about a second. `is_own`: whether the command was
    started during this run of the agent. On a system without /proc the process group may belong to others later.
    """
    left = 0
    for _ in range(_PASSES):
        found = list(find_remains(record))
        left = len(found)
        if record.cgroup is not None and guard.kill_cgroup(record.cgroup):
            left = max(left, 1)
        for each in found:
            guard.kill(each)
        if not _SEES_PROCESSES and record.pid and is_own:
            left = int(guard.kill_group(record.pid))
        if not left:
            break
        time.sleep(_PAUSE_SECONDS)
    if record.after is not None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(record.after, capture_output=True, timeout=guard.AFTER_SECONDS, check=False)  # noqa: S603 - ours
    if record.cgroup is not None and not left:
        guard.remove_cgroup(record.cgroup)
    return left


_SEES_PROCESSES: Final = bool(guard.list_processes())


def find_remains(record: Record) -> Iterator[guard.Process]:
    """Yield the running processes of a command."""
    processes = guard.list_processes()
    leader = processes.get(record.pid)
    # The id of a group stays taken while the group has members; without any, another process may have it.
    begun = record.begun if record.pid and (leader is None or leader.started == record.begun) else None
    for process in processes.values():
        is_in_group = begun is not None and record.pid in {process.group, process.session} and process.started >= begun
        if is_in_group or guard.has_tag(process.pid, record.tag):
            yield process
