"""The wheel, installed by pip into an empty environment with the dependencies of its metadata, without the lock file.

On the newest installed Python: with the extras, as a stack; and without them, as a producer installs it, against this
stack. The suite itself runs the checkout on the oldest one. With EVERY_PYTHON (`make integrations`) the plain wheel is
also installed on the oldest Python.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from leasehold.client.discovery import FOLDER, RunningStack, read_running
from leasehold.extras import EXTRAS
from testbed.processes import wait_for
from tests.ci_rules import NO_INDEX
from workers.embedded_redis import NO_SERVER, find_redis_server

# pip installs a hundred packages, and a stack starts.
pytestmark = [pytest.mark.timeout(900), pytest.mark.skipif(find_redis_server() is None, reason=NO_SERVER)]
ROOT: Final = Path(__file__).parents[2]
MINORS: Final = range(11, 16)
START_SECONDS: Final = 240.0
PRODUCER: Final = """
import sys
from leasehold import Client, __version__

with Client() as client, client.lease(pool="linux", wait=60) as lease:
    print(__version__, lease.token, lease.address)
"""
TYPED_PRODUCER: Final = """
from leasehold import Client, Lease, __version__

version: str = __version__


def hold(client: Client) -> tuple[int, str | None]:
    with client.lease(pool="linux", resources={"cpus": 2}) as lease:
        held: Lease = lease
        return held.token, held.address


Client(url=7)
"""


def find_pythons() -> list[str]:
    """Return the newest Python that runs here, from the PATH and from pyenv; with EVERY_PYTHON the oldest one first."""
    kept = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [
        next(filter(_runs, [f"python3.{minor}", *map(str, sorted(kept.glob(f"3.{minor}.*/bin/python")))]), None)
        for minor in MINORS
    ]
    present = [each for each in found if each]
    if not present:
        return [sys.executable]
    return list(dict.fromkeys([*(present[:1] if os.environ.get("EVERY_PYTHON") else []), present[-1]]))


def _runs(python: str) -> bool:
    """Return whether it runs: a shim's Python may not be installed, and a Python may lack its venv module."""
    if shutil.which(python) is None:
        return False
    command = [python, "-c", "import ensurepip, venv"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class Installation:
    """A virtual environment with a home of its own. `pip`: a Python with pip, which installs into it."""

    def __init__(self, folder: Path, python: str, pip: Path) -> None:
        self.folder, self.home, self._installer = folder, folder / "home", pip
        self.home.mkdir(parents=True)
        command = [python, "-m", "venv", "--without-pip", str(folder / "venv")]
        subprocess.run(command, check=True, capture_output=True)
        self.bin = folder / "venv" / "bin"

    def find_index(self) -> bool:
        return self._pip("--dry-run", "--no-deps", "msgspec").returncode == 0

    def install(self, *requirements: str) -> None:
        """Install by pip, with the configuration of the user."""
        # Compiling modules that are never imported would take longer than everything else.
        done = self._pip("--no-compile", *requirements)
        assert done.returncode == 0, done.stderr

    def _pip(self, *words: str) -> subprocess.CompletedProcess[str]:
        pip = [str(self._installer), "-m", "pip", "--python", str(self.bin / "python"), "--disable-pip-version-check"]
        command = [*pip, "install", "--quiet", *words]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(command, env=environment, cwd=self.home, capture_output=True, text=True, check=False)

    def list_installed(self) -> set[str]:
        """Return the names of the installed distributions in the form of module names."""
        done = self.run_python(
            "-c", "import importlib.metadata as m, json; print(json.dumps([d.name for d in m.distributions()]))"
        )
        return {name.lower().replace("-", "_") for name in json.loads(done)}

    def run_python(self, *words: str) -> str:
        return self._run(str(self.bin / "python"), *words).stdout

    def leasehold(self, *words: str, status: int | None = 0) -> str:
        """Return the output of a command; for an expected failure, standard error. `status` None: any status."""
        done = self._run(str(self.bin / "leasehold"), *words, status=status)
        return done.stderr if status else done.stdout

    def _run(self, *command: str, status: int | None = 0) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(self.home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        done = subprocess.run(
            command, cwd=self.home, env=environment, capture_output=True, text=True, check=False, timeout=START_SECONDS
        )
        assert status in {None, done.returncode}, (command, done.returncode, done.stdout, done.stderr)
        return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Python with its own pip, which is twice as fast as that of an older Python."""
    folder = tmp_path_factory.mktemp("pip")
    subprocess.run([find_pythons()[-1], "-m", "venv", str(folder)], check=True, capture_output=True)
    return folder / "bin" / "python"


def install(folder: Path, python: str, pip: Path, requirement: str) -> Installation:
    """Return a new environment with the wheel; skip the test if there is no package index."""
    made = Installation(folder, python, pip)
    if not made.find_index():
        pytest.skip(NO_INDEX)
    made.install(requirement)
    return made


@pytest.fixture(scope="module", params=find_pythons())
def installation(
    request: pytest.FixtureRequest, wheel: Path, pip: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installation:
    """Return the wheel without extras."""
    return install(tmp_path_factory.mktemp("installed"), request.param, pip, str(wheel))


@pytest.fixture(scope="module")
def server(wheel: Path, pip: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Yield the wheel with the extras, from which a stack runs."""
    made = install(tmp_path_factory.mktemp("server"), find_pythons()[-1], pip, f"{wheel}[server,emulator]")
    try:
        made.leasehold("up", "--detach")
        yield made
    finally:
        made.leasehold("down")


@pytest.fixture(scope="module")
def stack(server: Installation) -> RunningStack:
    """Return the stack of the wheel, with a pool for hosts."""
    (server.home / "rules.toml").write_text(
        '[pools.linux]\nsystem = "x86_64-linux"\nmax_slots = 2\nec2.image = "ami-0123456789abcdef0"\n'
        '[pools.lab]\nprovider = "static"\nsystem = "lab"\n'
    )
    server.leasehold("apply", "rules.toml", "--yes")
    found = read_running(server.home / FOLDER)
    assert found is not None
    return found


def test_the_wheel_with_its_extras_runs_a_stack(server: Installation) -> None:
    run = server.leasehold
    assert "--call-log" in server.run_python("-m", "leasehold_emulator", "--help")
    granted: dict[str, Any] = json.loads(run("reserve", "--system", "x86_64-linux", "--wait", "60", "--json"))
    assert granted["phase"] == "leased"
    run("release", granted["id"])
    assert "FAILURE" not in run("doctor", "--no-aws", "--timeout", "60")


def test_the_plain_wheel_installs_no_library_of_the_service(installation: Installation) -> None:
    assert not installation.list_installed() & set(EXTRAS)


def test_the_plain_wheel_serves_a_producer_and_an_operator_of_a_running_stack(
    installation: Installation, stack: RunningStack
) -> None:
    (installation.home / FOLDER).symlink_to(stack.folder)
    run = installation.leasehold
    try:
        name = f"build-{installation.folder.name}"
        assert (
            json.loads(run("reserve", "--pool", "linux", "--id", name, "--wait", "60", "--json"))["phase"] == "leased"
        )
        token = str(json.loads(run("get", name, "--json"))["token"])
        _look_around(installation, name)
        run("renew", name, "--token", token)
        run("release", name, "--token", token)
        run("reserve", "--pool", "lab", "--id", f"never-{name}")
        assert run("explain", f"never-{name}")
        run("cancel", f"never-{name}")
        assert installation.run_python("-c", PRODUCER).split()[1].isdigit()
        assert run("run", "--pool", "linux", "--", "printenv", "LEASEHOLD_TOKEN").split()[-1].isdigit()
        _serve_as_a_host(installation)
        _operate(installation)
        assert "pip install 'leasehold[server]'" in run("doctor", status=1)
    finally:
        (installation.home / FOLDER).unlink()


def _look_around(installation: Installation, name: str) -> None:
    run = installation.leasehold
    # On a busy machine a tick may be late.
    wait_for(lambda: json.loads(run("status", "--json", status=None))["state"] == "ok", "a stack that is well")
    assert name in run("list")
    assert "linux-" in run("slots")
    assert "leased" in run("explain", name)
    assert "Usage" in run("--help")


def _operate(installation: Installation) -> None:
    run = installation.leasehold
    run("accounts", "set", "ci", "--charge-rate", "2,1")
    assert "ci" in run("accounts", "list")
    assert "ci" in run("accounts", "show", "ci")
    run("accounts", "delete", "ci", "--yes")
    for command in ("cordon", "uncordon", "drain"):
        run(command, "linux-1")


def _serve_as_a_host(installation: Installation) -> None:
    run = installation.leasehold
    run("host", "register", "lab-7", "--pool", "lab", "--cpus", "1", "--memory", "512")
    run("host", "heartbeat", "lab-7")
    run("host", "leave", "lab-7")


def test_a_producers_code_is_checked_against_the_types_of_the_installed_client(installation: Installation) -> None:
    code = installation.home / "producer.py"
    code.write_text(TYPED_PRODUCER)
    python = f"--python-executable={installation.bin / 'python'}"
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=/dev/null", python, str(code)]
    done = subprocess.run(command, cwd=installation.home, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 1, done.stdout
    assert 'Argument "url" to "Client" has incompatible type "int"' in errors[0]
