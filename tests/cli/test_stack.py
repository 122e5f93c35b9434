"""A whole stack of real processes, started and stopped. No process of it may be left. These are the slowest tests."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from leasehold import Client
from leasehold.client.discovery import RunningStack, find_running, is_locked
from leasehold.client.models import Reservation
from leasehold.stack import Stack
from testbed.guarding import Guarded
from tests.cli import intruder
from workers.embedded_redis import NO_SERVER, find_redis_server

SECONDS = 150.0
NAME = "leasehold test job_feature%2Flogin@2 #1?ü "
"""The begin of the name of a stack's folder."""
FOREIGN = {
    "AWS_PROFILE": "no-such-profile",
    "AWS_USE_FIPS_ENDPOINT": "true",
    "CELERY_BROKER_READ_URL": "redis://127.0.0.1:1/0",
    "CELERY_CONFIG_MODULE": "no_such_module",
    "CELERY_RESULT_BACKEND": "no-such-backend://",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "ALL_PROXY": "http://127.0.0.1:9",
}
"""Variables for other programs of the user. They have no effect on a stack."""


class Shell:
    """`leasehold` in a folder, as a shell runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        own = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
        self.environment = own | FOREIGN
        self.up: Guarded | None = None

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        command = [sys.executable, "-m", "leasehold.cli", *words]
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )

    def start(self) -> RunningStack:
        """Run `leasehold up` until the stack runs."""
        log = (self.folder / "up.txt").open("wb")
        with log:
            self.up = Guarded(
                [sys.executable, "-m", "leasehold.cli", "up"],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                # The stack's files are private with any umask.
                umask=0,
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
    """Return when the condition holds; fail after a generous time."""
    never = threading.Event()
    for _ in range(int(SECONDS * 20)):
        if holds():
            return
        never.wait(0.05)
    raise AssertionError(f"waited in vain for {what}")


def list_processes(folder: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == folder:
                found.append(f"{entry.name} {(entry / 'cmdline').read_bytes().decode().replace(chr(0), ' ')}")
        except OSError:
            continue
    return found


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yield a folder that every user of this host can reach; `tmp_path` is in a closed one."""
    with tempfile.TemporaryDirectory(prefix=NAME) as name:
        Path(name).chmod(0o755)
        yield Path(name)


def require_server() -> None:
    """Skip the test where no stack can run, or where its processes cannot be listed."""
    if find_redis_server() is None:
        pytest.skip(NO_SERVER)
    if not Path("/proc/self/cwd").exists():
        pytest.skip("no /proc here to look for what is left")


@pytest.fixture
def shell(open_folder: Path) -> Iterator[Shell]:
    require_server()
    found = Shell(open_folder.resolve())
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
    await_(lambda: shell.run("alive", "foresight").returncode == 0, "the first forecasts")
    found = json.loads(status.stdout)
    assert found["leader"].startswith(f"{socket.gethostname()}:")
    assert set(found["urls"]) == {"broker", "flower", "console", "metrics", "emulator"}
    again = shell.run("up")
    assert (again.returncode, len(again.stderr.splitlines())) == (1, 1)
    _kill_and_see_it_come_back(shell, running)
    assert shell.up is not None
    shell.up.send_signal(signal.SIGINT)
    assert shell.up.wait(SECONDS) == 0
    assert list_processes(shell.folder) == []
    assert find_running(shell.folder) is None


def _look_at(shell: Shell, leased: Reservation) -> None:
    """Check that commands show the lease on the slot, and the slot of the reservation."""
    (lease,) = leased.leases
    (slot,) = csv.DictReader(StringIO(shell.run("slots", "--tag", "run=7", "-o", "csv").stdout))
    total = leased.leases[0].resources["cpus"]
    assert (slot["slot"], slot["held_by"], slot["machine"]) == (lease.slot, leased.id, lease.instance_id)
    assert f"cpus {total:g}/" in slot["used"]
    reported = shell.run("explain", leased.id).stdout
    assert f"on {lease.slot} {lease.instance_id} {lease.address} {lease.type}" in reported


def _interrupt(running: RunningStack, machine: str) -> None:
    """Let the stack's EC2 interrupt a machine in two minutes."""
    order = json.dumps({"instances": [machine]}).encode()
    password = running.environment["LEASEHOLD_AWS__SECRET_ACCESS_KEY"]
    login = {"Authorization": f"Basic {b64encode(f'leasehold:{password}'.encode()).decode()}"}
    request = urllib.request.Request(f"{running.urls['emulator']}/_leasehold/interrupt", order, login)  # noqa: S310 (loopback)
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 (loopback)
        assert answer.status == 200


def _kill_and_see_it_come_back(shell: Shell, running: RunningStack) -> None:
    """Check that a killed process is started again and works."""
    old = running.pids["ticks"]
    os.kill(old, signal.SIGKILL)

    def is_back() -> bool:
        found = find_running(shell.folder)
        return found is not None and found.pids.get("ticks", old) != old

    await_(is_back, "another process for ticks")
    with Client(running.broker_url) as client:
        row = client.reserve(system="x86_64-linux", resources={"cpus": 1})
        assert client.wait(row.id, timeout=60).phase == "leased"


def test_what_a_stack_keeps_is_closed_to_other_users(keeping: tuple[Shell, RunningStack]) -> None:
    kept = [keeping[1].folder, *keeping[1].folder.rglob("*")]
    names = {path.name for path in kept}
    assert {"leasehold.db", "leasehold.db-wal", "leasehold.db-shm", "run.json", "lock", "ticks.log"} <= names
    assert [f"{path} {path.stat().st_mode:o}" for path in kept if path.stat().st_mode & 0o077] == []
    assert intruder.read_files(kept) == []


def test_another_user_cannot_use_the_redis_of_a_stack(keeping: tuple[Shell, RunningStack]) -> None:
    _, running = keeping
    assert intruder.use_redis(urlsplit(running.broker_url).port or 0, running.folder / "logs") == []
    assert not (running.folder / "logs" / "planted").exists()


def test_another_user_cannot_steer_the_emulator_of_a_stack(keeping: tuple[Shell, RunningStack]) -> None:
    assert intruder.steer_emulator(keeping[1].urls["emulator"]) == []


def test_no_process_shows_a_secret_of_a_stack_to_another_user(keeping: tuple[Shell, RunningStack]) -> None:
    _, running = keeping
    secrets = intruder.list_secrets(running)
    assert len(secrets) == 2
    assert intruder.find_in_processes(secrets) == []


def test_no_page_shows_a_secret_of_a_stack(keeping: tuple[Shell, RunningStack]) -> None:
    _, running = keeping
    flower = running.urls["flower"]
    worker = f"{flower}/worker/ticks@{socket.gethostname()}"
    shown = intruder.read_pages([running.urls["metrics"], flower, f"{flower}/workers", worker, f"{flower}/metrics"])
    assert "leasehold_up" in shown
    assert "broker_read_url" in shown
    assert [secret for secret in intruder.list_secrets(running) if secret in shown] == []


@pytest.fixture(scope="module")
def keeping() -> Iterator[tuple[Shell, RunningStack]]:
    """Yield a stack in a folder that other users can reach, and that an older version left open."""
    require_server()
    with tempfile.TemporaryDirectory(prefix=NAME) as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / ".leasehold" / "logs").mkdir(parents=True)
        (folder / ".leasehold" / "logs" / "ec2-calls.jsonl").touch()
        (folder / ".leasehold" / "logs" / "ec2-calls.jsonl").chmod(0o644)
        for each in (folder / ".leasehold", folder / ".leasehold" / "logs"):
            each.chmod(0o755)
        shell = Shell(folder.resolve())
        try:
            yield shell, shell.start()
        finally:
            if shell.up is not None and shell.up.poll() is None:
                shell.up.terminate()
                shell.up.wait(SECONDS)
            if list_processes(shell.folder):  # of a test that failed
                shell.run("down")


class Stranger:
    """A server of another program that answers every request with status 200, and keeps the requests."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._server: ThreadingHTTPServer | None = None

    def take(self, port: int) -> None:
        seen = self.seen

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append(f"{self.path} {self.headers}")
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the library
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def leave(self) -> None:
        """Stop the server."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


@pytest.mark.timeout(400)
def test_a_stack_leaves_a_port_that_another_program_took_while_it_started(tmp_path: Path) -> None:
    strangers = {"console": Stranger(), "metrics": Stranger()}

    def take_ports(name: str, state: str) -> None:
        if (name, state) == ("redis", "started"):
            for page, stranger in strangers.items():
                stranger.take(urlsplit(stack.urls[page]).port or 0)

    stack = Stack(tmp_path, on_progress=take_ports)
    try:
        with stack:
            assert stack.console_url is not None
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with browser.open(stack.console_url, timeout=10) as page:
                assert page.status == 200
            assert all(stranger.seen == [] for stranger in strangers.values())
            assert len(stack.configuration.moved_ports) >= len(strangers)
            # The thread that watches the processes writes the same file, for example when it has restarted one.
            with ThreadPoolExecutor(4) as threads:
                list(threads.map(lambda _: stack._write(), range(400)))
    finally:
        for stranger in strangers.values():
            stranger.leave()


@pytest.mark.timeout(400)
def test_a_stack_that_follows_a_killed_one_is_reported_when_it_runs_and_killed_leaves_nothing_behind(
    keeping: tuple[Shell, RunningStack],
) -> None:
    """The last test, because it ends the stack that others use."""
    shell, old = keeping
    assert shell.up is not None
    shell.up.kill()
    shell.up.wait(SECONDS)
    # The reaper is still ending the processes of the old stack.
    found = shell.run("up", "--detach")
    assert found.returncode == 0, found.stderr
    new = find_running(shell.folder)
    assert new is not None
    assert new.phase == "running"
    assert new.broker_url != old.broker_url
    assert new.urls["console"] in found.stdout
    assert shell.run("alive", "console").returncode == 0
    assert len(list_processes(shell.folder)) > 10
    os.kill(new.pid, signal.SIGKILL)
    await_(lambda: not is_locked(shell.folder / ".leasehold" / "lock"), "the reaper to end everything")
    await_(lambda: list_processes(shell.folder) == [], "everything to end")
    assert shell.run("down").returncode == 1
