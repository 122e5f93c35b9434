"""A whole stack of real processes, up and down: the slowest tests there are. Nothing may be left of it."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pytest

from leasehold import Client
from leasehold.results import Reservation
from leasehold.running import RunningStack, find_running, is_locked
from tests.guarding import Guarded
from workers.embedded_redis import NO_SERVER, find_redis_server

SECONDS = 150.0


class Shell:
    """`leasehold` in a folder, as a shell runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
        self.up: Guarded | None = None

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One command, to its end."""
        command = [sys.executable, "-m", "leasehold.cli", *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )

    def start(self) -> RunningStack:
        """`leasehold up`, until it runs."""
        log = (self.folder / "up.txt").open("wb")
        with log:
            self.up = Guarded(
                [sys.executable, "-m", "leasehold.cli", "up"],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        await_(lambda: self.is_running() or self.has_ended(), "the stack to run")
        found = find_running(self.folder)
        assert found is not None, (self.folder / "up.txt").read_text()
        return found

    def is_running(self) -> bool:
        found = find_running(self.folder)
        return found is not None and found.phase == "running"

    def has_ended(self) -> bool:
        return self.up is not None and self.up.poll() is not None


def await_(holds: Callable[[], bool], what: str) -> None:
    """Return when it holds; looks often, and gives up after a time that nothing here should need."""
    never = threading.Event()
    for _ in range(int(SECONDS * 20)):
        if holds():
            return
        never.wait(0.05)
    raise AssertionError(f"waited in vain for {what}")


def list_processes(folder: Path) -> list[str]:
    """The processes that run in this folder: every child of a stack does."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                found.append(f"{entry.name} {(entry / 'cmdline').read_bytes().decode().replace(chr(0), ' ')}")
        except OSError:
            continue
    return found


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    if find_redis_server() is None:
        pytest.skip(NO_SERVER)
    if not Path("/proc/self/cwd").exists():
        pytest.skip("no /proc here to look for what is left")
    found = Shell(tmp_path.resolve())
    yield found
    if found.up is not None and found.up.poll() is None:
        found.up.terminate()
        found.up.wait(SECONDS)


@pytest.mark.timeout(400)
def test_a_stack_serves_heals_itself_and_leaves_nothing_behind(shell: Shell) -> None:
    running = shell.start()
    with Client(running.broker_url) as client:
        row = client.reserve(system="x86_64-linux", resources={"cpus": 1}, tags={"run": "7"})
        leased = client.wait(row.id, timeout=60)
        _look_at(shell, leased)
        _interrupt(running, str(leased.leases[0].instance_id))
        await_(lambda: getattr(client.get(row.id), "phase", None) == "revoking", "the interruption's notice")
        client.release(row.id, leased.token)
    status = shell.run("status", "--probe", "--json")
    assert status.returncode == 0, status.stdout + status.stderr
    alive = shell.run("alive", "beat")
    assert (alive.returncode, alive.stdout) == (0, "beat is alive\n"), alive.stderr
    found = json.loads(status.stdout)
    assert found["leader"].startswith(f"{socket.gethostname()}:")
    assert set(found["urls"]) == {"broker", "flower", "metrics", "emulator"}
    again = shell.run("up")
    assert (again.returncode, len(again.stderr.splitlines())) == (1, 1)
    _kill_and_see_it_come_back(shell, running)
    assert shell.up is not None
    shell.up.send_signal(signal.SIGINT)
    assert shell.up.wait(SECONDS) == 0
    assert list_processes(shell.folder) == []
    assert find_running(shell.folder) is None


def _look_at(shell: Shell, leased: Reservation) -> None:
    """Commands show what is on the slot, and where the reservation is."""
    (lease,) = leased.leases
    (slot,) = csv.DictReader(StringIO(shell.run("slots", "--tag", "run=7", "-o", "csv").stdout))
    total = leased.leases[0].resources["cpus"]
    assert (slot["slot"], slot["held_by"], slot["machine"]) == (lease.slot, leased.id, lease.instance_id)
    assert f"cpus {total:g}/" in slot["used"]
    told = shell.run("explain", leased.id).stdout
    assert f"on {lease.slot} {lease.instance_id} {lease.address} {lease.type}" in told


def _interrupt(running: RunningStack, machine: str) -> None:
    """Let the stack's EC2 interrupt a machine two minutes from now."""
    order = json.dumps({"instances": [machine]}).encode()
    with urllib.request.urlopen(f"{running.urls['emulator']}/_leasehold/interrupt", order, timeout=10) as answer:  # noqa: S310 (loopback)
        assert answer.status == 200


def _kill_and_see_it_come_back(shell: Shell, running: RunningStack) -> None:
    """What dies is started again, and works."""
    old = running.pids["ticks"]
    os.kill(old, signal.SIGKILL)

    def is_back() -> bool:
        found = find_running(shell.folder)
        return found is not None and found.pids.get("ticks", old) != old

    await_(is_back, "another process for ticks")
    with Client(running.broker_url) as client:
        row = client.reserve(system="x86_64-linux", resources={"cpus": 1})
        assert client.wait(row.id, timeout=60).phase == "leased"


@pytest.mark.timeout(400)
def test_a_killed_supervisor_leaves_nothing_behind(shell: Shell) -> None:
    shell.start()
    assert shell.up is not None
    assert len(list_processes(shell.folder)) > 10
    shell.up.kill()
    shell.up.wait(SECONDS)
    await_(lambda: not is_locked(shell.folder / ".leasehold" / "lock"), "the guardian to end everything")
    await_(lambda: list_processes(shell.folder) == [], "everything to end")
    assert shell.run("down").returncode == 1
