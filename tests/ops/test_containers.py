"""compose/ on a real container engine, started as docs/how-to/aws.md describes, with the emulator instead of EC2.

The mounted files have mode 600. The project has its own name, ports and image tags. The tests are skipped without an
engine, or if it has no base images and cannot pull them.
"""

import configparser
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.ci_rules import NO_ENGINE
from tests.system.processes import wait_for

# Two images are built and fifteen containers started, perhaps on a busy machine.
pytestmark = pytest.mark.timeout(2400)

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Procfile")
FOLDERS: Final = ("examples", "leasehold", "tasks", "workers", "scheduler", "compose")
OURS: Final = (
    "reservations",
    "ticks",
    "launch",
    "health",
    "terminate",
    "beat",
    "beat-2",
    "flower",
    "console",
    "metrics",
    "emulator",
)
PATIENCE: Final = 600.0
COMMAND_SECONDS: Final = 1200.0
KILLED: Final = 137
"""The exit code of a container that was ended by SIGKILL after its grace."""


def run(*words: str, folder: Path = ROOT, seconds: float = COMMAND_SECONDS) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)


def has_engine() -> bool:
    """Return whether a container engine answers, has Compose, and has the base images or can pull them."""
    commands = (("docker", "info"), ("docker", "compose", "version"))
    if shutil.which("docker") is None or any(run(*words).returncode for words in commands):
        return False
    texts = [(ROOT / "compose" / name).read_text(encoding="utf-8") for name in ("compose.yaml", "Dockerfile")]
    images = re.findall(r"^(?: +image:|FROM) ((?!leasehold)[a-z0-9/.-]+:[a-z0-9.-]+)", "\n".join(texts), re.MULTILINE)
    assert len(set(images)) == 4
    return all(
        run("docker", "image", "inspect", image).returncode == 0 or run("docker", "pull", image).returncode == 0
        for image in sorted(set(images))
    )


def find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def write_pip_configuration(path: Path) -> None:
    """Write pip's configuration of this host into one file, without the settings that name files of this host."""
    lines = run(sys.executable, "-m", "pip", "config", "list").stdout.splitlines()
    pairs = [line.partition("=") for line in lines if line.startswith("global.")]
    values = {name.removeprefix("global."): value.strip("'\"") for name, _, value in pairs}
    parser = configparser.RawConfigParser()
    parser["global"] = {name: value for name, value in values.items() if not value.startswith("/")}
    with path.open("w", encoding="utf-8") as file:
        parser.write(file)


class Containers:
    """A copy of the checkout with a compose project of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.compose_folder = folder, folder / "compose"
        self.name = f"leasehold-test-{secrets.token_hex(4)}"
        self.tags = [self.name, f"{self.name}-next"]
        self.started = ""
        for name in COPIED:
            shutil.copy(ROOT / name, folder)
        for name in FOLDERS:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".env"))
        self._write_settings()
        self._make_private()

    def _write_settings(self) -> None:
        write_pip_configuration(self.folder / "pip.conf")
        self.owner = 12345 if os.geteuid() == 0 else os.geteuid()
        text = (self.compose_folder / "env.example").read_text(encoding="utf-8")
        users = (self.compose_folder / "redis" / "users.acl").read_text(encoding="utf-8")
        for placeholder in sorted(set(re.findall(r"CHANGE-ME(?:-[A-Z]+)?", text + users)), reverse=True):
            password = secrets.token_hex(16)
            text, users = (re.sub(rf"{placeholder}\b(?!-)", password, each) for each in (text, users))
        (self.compose_folder / "redis" / "users.acl").write_text(users, encoding="utf-8")
        values = {
            "IMAGE_TAG": self.tags[0],
            "PIP_CONFIG_FILE": self.folder / "pip.conf",
            "CONTAINER_USER": f"{self.owner}:{self.owner}",
            "EMULATOR_URL": "http://emulator:4579",
            "EMULATOR_KEY": "any",
            # The commands of this test are not signed.
            "ACCESS_MODE": "open",
            "FLOWER_PORT": find_free_port(),
            "CONSOLE_PORT": find_free_port(),
            "PROMETHEUS_PORT": find_free_port(),
        }
        self._environment = text
        self.set_values(values)
        self._write_overrides()

    def _write_overrides(self) -> None:
        """Override the network of builds, because the package index may be reachable only from this host's network, and
        the times of health checks, which are slow while fifteen services start.
        """
        services: dict[str, Any] = {name: {"healthcheck": {"timeout": "120s"}} for name in OURS}
        for name in ("prepare", "emulator"):
            services.setdefault(name, {})["build"] = {"network": "host"}
        # JSON is valid YAML.
        (self.compose_folder / "test.yaml").write_text(json.dumps({"services": services}), encoding="utf-8")

    def set_values(self, values: dict[str, Any]) -> None:
        """Change variables in .env."""
        for name, value in values.items():
            self._environment, count = re.subn(rf"(?m)^{name}=.*$", f"{name}={value}", self._environment)
            assert count == 1, name
        (self.compose_folder / ".env").write_text(self._environment, encoding="utf-8")

    def _make_private(self) -> None:
        for name in (".env", "redis/users.acl", "leasehold.toml", "aws/config"):
            (self.compose_folder / name).chmod(0o600)
            if os.geteuid() == 0 and name != ".env":
                os.chown(self.compose_folder / name, self.owner, self.owner)

    def compose(self, *words: str, status: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run `docker compose WORDS` in compose/ and check its status."""
        files = ("--file", "compose.yaml", "--file", "test.yaml")
        command = ("docker", "compose", "--project-name", self.name, *files, "--profile", "emulator", *words)
        done = run(*command, folder=self.compose_folder)
        assert status is None or done.returncode == status, f"{words}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done

    def leasehold(self, service: str, *words: str, status: int = 0) -> str:
        """Return the output of `leasehold WORDS` in the container of a service."""
        done = self.compose("exec", "-T", service, "leasehold", *words, status=status)
        return done.stdout + done.stderr

    def list_containers(self) -> dict[str, dict[str, Any]]:
        """Return the containers of the project by service, including ended ones."""
        lines = self.compose("ps", "--all", "--format", "json").stdout.splitlines()
        return {each["Service"]: each for each in map(json.loads, lines)}

    def await_healthy(self) -> None:
        """Wait until every service is healthy, except `prepare`, which ends."""
        wait_for(lambda: not self._list_others(), "healthy services", PATIENCE)

    def _list_others(self) -> list[str]:
        found = self.list_containers()
        assert len(found) == 15
        return [name for name, each in found.items() if each["Health"] != "healthy" and name != "prepare"]

    def find(self, name: str) -> dict[str, Any]:
        """Return the reservation; {} while it cannot be read."""
        done = self.compose("exec", "-T", "ticks", "leasehold", "get", name, "--json", status=None)
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return found

    def await_leased(self, name: str) -> None:
        """Wait until the reservation is leased."""
        wait_for(lambda: self.find(name).get("phase") == "leased", f"{name} to be leased", PATIENCE)

    def find_failed(self, *names: str) -> list[dict[str, Any]]:
        """Return which of these reservations have failed."""
        return [found for found in map(self.find, names) if found.get("phase") == "failed"]

    def remove(self) -> None:
        """Remove everything that was made, except layers in the builder's cache."""
        self.compose("down", "--volumes", "--timeout", "10", status=None)
        for tag in self.tags:
            run("docker", "image", "rm", f"leasehold:{tag}", f"leasehold-emulator:{tag}")


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """Yield the project, built and started by the command in the comment of compose.yaml."""
    if not has_engine():
        pytest.skip(NO_ENGINE)
    found = Containers(tmp_path_factory.mktemp("containers"))
    try:
        done = found.compose("up", "--detach", "--build")
        found.started = done.stdout + done.stderr
        found.await_healthy()
        # The page has this step. Without it the doctor warns that no caller can log in to the console.
        found.leasehold("ticks", "principals", "add", "anna", "--role", "operator")
        yield found
    finally:
        found.remove()


def test_up_builds_both_images_before_it_starts_anything_and_pulls_neither(containers: Containers) -> None:
    assert "Pull" not in containers.started
    assert "rror" not in re.sub(r"(?m)^#\d+ .*$", "", containers.started)
    images = {name: each["Image"] for name, each in containers.list_containers().items()}
    assert images["emulator"] == f"leasehold-emulator:{containers.tags[0]}"
    assert images["launch"] == images["beat-2"] == f"leasehold:{containers.tags[0]}"


def test_the_image_of_the_workers_has_no_emulator_and_keeps_no_pip_configuration(containers: Containers) -> None:
    has = "import importlib.util as u, os; print([n for n in {} if u.find_spec(n)], os.path.exists('/etc/pip.conf'))"
    words = ("python", "-c", has.format(["moto", "sympy", "pip", "boto3", "psycopg"]))
    assert containers.compose("exec", "-T", "launch", *words).stdout.strip() == "['boto3', 'psycopg'] False"
    assert containers.compose("exec", "-T", "emulator", *words).stdout.strip().startswith("['moto', 'sympy', ")


def test_files_of_mode_600_are_read_and_another_user_is_reported_by_its_uid(containers: Containers) -> None:
    assert containers.compose("exec", "-T", "ticks", "id", "-u").stdout.strip() == str(containers.owner)
    words = ("run", "--rm", "--no-deps", "-T", "--user", "4321", "ticks")
    done = containers.compose(*words, status=None)
    line = '/etc/leasehold/leasehold.toml: expected a file that can be read, got "Permission denied (as uid 4321)"'
    assert (done.returncode, done.stdout) == (1, "")
    assert f"leasehold: {line}" in done.stderr.splitlines()


def test_a_lease_is_taken_and_released_in_a_container_and_the_doctor_finds_nothing(containers: Containers) -> None:
    containers.leasehold(
        "ticks", "reserve", "--system", "x86_64-linux", "--cpus", "1", "--id", "first", "--wait", "300"
    )
    assert "first released" in containers.leasehold("ticks", "release", "first")
    found = json.loads(containers.leasehold("ticks", "doctor", "--no-aws", "--timeout", "60", "--json"))
    assert [each for each in found["findings"] if each["outcome"] not in {"ok", "skipped"}] == []
    stated = containers.leasehold("metrics", "status", status=2)
    assert "user metrics may not read the leader lock" in stated


def test_a_stop_of_launch_while_ec2_does_not_answer_ends_within_the_grace(containers: Containers) -> None:
    containers.compose("pause", "emulator")
    try:
        for name in ("second", "third"):
            containers.leasehold("ticks", "reserve", "--system", "x86_64-linux", "--cpus", "4", "--id", name)
        wait_for(partial(is_connected, containers, "launch"), "a call to EC2", PATIENCE)
        containers.compose("stop", "launch")
    finally:
        containers.compose("unpause", "emulator")
    ended = containers.list_containers()["launch"]
    assert (ended["State"], ended["ExitCode"] == KILLED) == ("exited", False)
    log = containers.compose("logs", "--no-log-prefix", "launch").stdout
    assert '"action": "worker.left"' in log
    assert "Traceback" not in log
    containers.compose("up", "--detach", "--no-deps", "launch")
    for name in ("second", "third"):
        containers.await_leased(name)


def is_connected(containers: Containers, service: str) -> bool:
    """Return whether a process of the service has an open connection to the emulator's port."""
    table = containers.compose("exec", "-T", service, "cat", "/proc/net/tcp").stdout.splitlines()[1:]
    established, port = "01", f"{4579:04X}"
    return any(words[2].endswith(f":{port}") and words[3] == established for words in map(str.split, table))


def test_a_killed_redis_recovers(containers: Containers) -> None:
    containers.compose("kill", "redis")
    containers.compose("up", "--detach", "--no-deps", "redis")
    containers.leasehold(
        "ticks", "reserve", "--system", "x86_64-linux", "--cpus", "1", "--id", "after", "--wait", "300"
    )


def test_an_upgrade_as_the_page_describes_replaces_every_process(containers: Containers) -> None:
    page = (ROOT / "docs" / "how-to" / "aws.md").read_text(encoding="utf-8")
    assert "docker compose run --rm --no-deps prepare" in page
    assert "docker compose up -d --no-deps $(docker compose ps --services)" in page
    old, new = containers.tags
    for image in ("leasehold", "leasehold-emulator"):
        assert run("docker", "tag", f"{image}:{old}", f"{image}:{new}").returncode == 0
    containers.set_values({"IMAGE_TAG": new})
    containers.compose("run", "--rm", "--no-deps", "-T", "prepare")
    services: Sequence[str] = containers.compose("ps", "--services").stdout.split()
    assert "beat-2" in services
    containers.compose("up", "-d", "--no-deps", *services)
    images = {name: each["Image"] for name, each in containers.list_containers().items()}
    ours = {name: image for name, image in images.items() if image.startswith("leasehold") and name != "prepare"}
    assert set(ours) == set(OURS)
    assert all(image.endswith(f":{new}") for image in ours.values())


def test_leased_reservations_fail_when_the_emulator_and_its_machines_are_gone(containers: Containers) -> None:
    """The upgrade has replaced the emulator's container, so for Leasehold EC2 has lost all machines. A machine that is
    not found counts as lost when it is five minutes old; the reservation of the oldest machine fails first.
    """
    gone = wait_for(lambda: containers.find_failed("second", "third", "after"), "a lease without its machine", PATIENCE)
    assert {each["reason"] for each in gone} == {"slot_gone"}
    containers.leasehold("ticks", "reserve", "--system", "x86_64-linux", "--cpus", "1", "--id", "last", "--wait", "300")
