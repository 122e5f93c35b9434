"""`python -I -S workload.py FOLDER FLAGS SECONDS CODE`: a command of a chaos run, which writes what it does.

It writes a line when it begins, one each 0.1 s, and one before it exits with CODE after SECONDS. Times are those of the
boot clock, which all processes of the machine share. FLAGS, with commas between them: `deaf` ignores SIGTERM; `polite`
exits with 0 at SIGTERM; `daemon` leaves a process in a session of its own, which never ends; `bare` leaves one with
another environment. Only the standard library, because a command starts in a few milliseconds.
"""

import json
import os
import signal
import sys
import time

BEAT_SECONDS = 0.1
LONGEST_SECONDS = 600.0
"""A daemon ends by itself after this time, so that a run without a guard leaves nothing for ever."""
NAMES = ("reservation", "component", "token", "slot")


class Log:
    """The lines of one process in the file of its host. `identity`: the lease, the slot and the host."""

    def __init__(self, folder: str, identity: dict[str, str], role: str) -> None:
        self._identity = {**identity, "role": role, "pid": os.getpid()}
        path = f"{folder}/{identity['host']}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, what: str, **more: object) -> None:
        """Write one line by one call, so that a kill cuts off none."""
        line = {"what": what, "at": time.clock_gettime(time.CLOCK_BOOTTIME), **self._identity, **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")


def find_identity() -> dict[str, str]:
    """Return the lease that the environment names, and the host, which is the name of its agent's home folder."""
    found = {name: os.environ.get(f"LEASEHOLD_{name.upper()}", "") for name in NAMES}
    return {**found, "host": os.environ["HOME"].rpartition("/")[2], "forged": os.environ.get("FORGED", "")}


def work(log: Log, seconds: float) -> None:
    """Write a line each 0.1 s for this time."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, BEAT_SECONDS))
        log.write("beat")


def leave(log: Log) -> None:
    """Exit as a command does that has finished its work."""
    log.write("end", code=0)
    os._exit(0)


def leave_daemon(folder: str, identity: dict[str, str], *, is_bare: bool) -> None:
    """Start a process that leaves the session of this one, as a daemon does."""
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    if is_bare:
        words = [sys.executable, "-I", "-S", __file__, folder, "is-daemon", json.dumps(identity), "0"]
        os.execve(sys.executable, words, {"PATH": os.defpath})  # noqa: S606 - it is this program
    work(Log(folder, identity, "daemon"), LONGEST_SECONDS)
    os._exit(0)


def main(folder: str, flags: str, seconds: str, code: str) -> None:
    """Carry out one command."""
    if flags == "is-daemon":
        work(Log(folder, json.loads(seconds), "daemon"), LONGEST_SECONDS)
        return
    identity, chosen = find_identity(), flags.split(",")
    log = Log(folder, identity, "main")
    log.write("begin")
    if "deaf" in chosen:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "polite" in chosen:
        signal.signal(signal.SIGTERM, lambda *_: leave(log))
    for flag in ("daemon", "bare"):
        if flag in chosen:
            leave_daemon(folder, identity, is_bare=flag == "bare")
    work(log, float(seconds))
    log.write("end", code=int(code))
    sys.exit(int(code))


if __name__ == "__main__":
    main(*sys.argv[1:])
