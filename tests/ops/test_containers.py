"""compose/ on a real container engine, started as docs/how-to/aws.md describes: with env.example, signed messages, the
template's stack, the pool of the page and a second host; with the emulator instead of EC2.

The mounted files have mode 600. The project has its own name, ports and image tags. The tests are skipped without an
engine, or if it has no base images and cannot pull them. They run in the order of the file: each one leaves the stack
as the next one expects it.
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

from testbed.processes import wait_for
from tests.ci_rules import NO_ENGINE

# Two images are built and twenty containers started, perhaps on a busy machine.
pytestmark = pytest.mark.timeout(2400)

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Procfile")
FOLDERS: Final = ("examples", "leasehold", "tasks", "workers", "scheduler", "emulator", "compose")
WORKERS: Final = ("reservations", "ticks", "launch", "health", "terminate")
OURS: Final = (*WORKERS, "beat", "beat-2", "foresight", "flower", "console", "metrics", "emulator")
SECOND_HOST: Final = (*WORKERS, "beat")
PAGE: Final = (ROOT / "docs" / "how-to" / "aws.md").read_text(encoding="utf-8")
REGION: Final = "eu-central-1"
"""The region of the page."""
ACCOUNT: Final = """
import json, sys
import boto3

given = dict(endpoint_url="http://127.0.0.1:4579", aws_access_key_id="any", aws_secret_access_key="any")
ec2, cloudformation = (boto3.client(name, region_name="REGION", **given) for name in ("ec2", "cloudformation"))
(vpc,) = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
parameters = {"Cluster": "leasehold", "Vpc": vpc["VpcId"]}
cloudformation.create_stack(
    StackName="leasehold",
    TemplateBody=sys.stdin.read(),
    Capabilities=["CAPABILITY_NAMED_IAM"],
    Parameters=[{"ParameterKey": name, "ParameterValue": value} for name, value in parameters.items()],
)
(stack,) = cloudformation.describe_stacks(StackName="leasehold")["Stacks"]
outputs = {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}
subnets = {each["AvailabilityZone"]: each["SubnetId"] for each in ec2.describe_subnets()["Subnets"]}
print(json.dumps({**outputs, **subnets}))
""".replace("REGION", REGION)
"""The part "The template" of the page: it creates the stack in the emulator, and prints its outputs and the subnets."""
PATIENCE: Final = 600.0
COMMAND_SECONDS: Final = 1200.0
KILLED: Final = 137
"""The exit code of a container that was ended by SIGKILL after its grace."""


def run(
    *words: str, folder: Path = ROOT, seconds: float = COMMAND_SECONDS, given: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, input=given, capture_output=True, text=True, timeout=seconds, check=False)


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


def read_pool() -> str:
    """Return the rules of the page's section "From the outputs to a pool"."""
    section = PAGE.partition("### From the outputs to a pool\n")[2]
    found = re.search(r"```toml\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


class Containers:
    """A copy of the checkout with a compose project of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.compose_folder = folder, folder / "compose"
        self.name = f"leasehold-test-{secrets.token_hex(4)}"
        self.second = SecondHost(self)
        self.tags = [self.name, f"{self.name}-next"]
        self.started = self.key = ""
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
            "AWS_REGION": REGION,
            "EMULATOR_URL": "http://emulator:4579",
            "EMULATOR_KEY": "any",
            "FLOWER_PORT": find_free_port(),
            "CONSOLE_PORT": find_free_port(),
            "PROMETHEUS_PORT": find_free_port(),
        }
        self._environment = text
        self.set_values(values)
        # The package index may be reachable only from this host's network. JSON is valid YAML.
        builds = {name: {"build": {"network": "host"}} for name in ("prepare", "emulator")}
        (self.compose_folder / "test.yaml").write_text(json.dumps({"services": builds}), encoding="utf-8")
        self.second.write_network()

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

    def create_account(self) -> None:
        """Create the template's stack in the emulator, and write the pool of the page with its outputs."""
        template = (self.compose_folder / "cloudformation.yaml").read_text(encoding="utf-8")
        done = self.compose("exec", "-T", "emulator", "python", "-c", ACCOUNT, given=template)
        found = json.loads(done.stdout)
        pool, count = re.subn(
            r'"([a-z0-9-]+):subnet-[a-z]+"', lambda zone: f'"{zone[1]}:{found[zone[1]]}"', read_pool()
        )
        assert count == 2
        for old, new in (
            ("https://sqs.eu-central-1.amazonaws.com/123456789012/leasehold-interruptions", "InterruptionQueueUrl"),
            ("lt-0123456789abcdef0", "LaunchTemplateId"),
        ):
            assert pool.count(old) == 1
            pool = pool.replace(old, found[new])
        assert f"launch_template_version = {found['LaunchTemplateVersion']}\n" in pool
        (self.compose_folder / "leasehold.toml").write_text(pool, encoding="utf-8")

    def compose(
        self, *words: str, status: int | None = 0, given: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `docker compose WORDS` in compose/ and check its status."""
        return self.run_compose(self.name, ["test.yaml"], *words, status=status, given=given)

    def run_compose(
        self, project: str, more: Sequence[str], *words: str, status: int | None = 0, given: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `docker compose WORDS` for a project, with more files beside compose.yaml."""
        files = [word for name in ("compose.yaml", *more) for word in ("--file", name)]
        command = ("docker", "compose", "--project-name", project, *files, "--profile", "emulator", *words)
        done = run(*command, folder=self.compose_folder, given=given)
        assert status is None or done.returncode == status, f"{words}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done

    def leasehold(self, service: str, *words: str, status: int = 0) -> str:
        """Return the output of `leasehold WORDS` in the container of a service, signed as the operator of the page."""
        done = self.compose("exec", "-T", *self.signing, service, "leasehold", *words, status=status)
        return done.stdout + done.stderr

    @property
    def signing(self) -> list[str]:
        """Options by which a command in a container is signed as the operator; none before there is one."""
        return ["-e", f"LEASEHOLD_ACCESS__KEY={self.key}"] if self.key else []

    def reserve(self, name: str, *words: str, cpus: int = 1) -> str:
        """Take a lease by the command of the page."""
        asked = ("--system", "x86_64-linux", "--cpus", str(cpus), "--id", name, "--wait", "300")
        return self.leasehold("ticks", "reserve", *asked, *words)

    def list_containers(self) -> dict[str, dict[str, Any]]:
        """Return the containers of the project by service, including ended ones."""
        lines = self.compose("ps", "--all", "--format", "json").stdout.splitlines()
        return {each["Service"]: each for each in map(json.loads, lines)}

    def await_healthy(self) -> None:
        """Wait until every service is healthy, except `prepare`, which ends."""
        wait_for(lambda: not self._list_others(), "healthy services", PATIENCE)

    def _list_others(self) -> list[str]:
        found = self.list_containers()
        assert {*found} == {*OURS, "redis", "postgres", "prepare", "prometheus"}
        return [name for name, each in found.items() if each["Health"] != "healthy" and name != "prepare"]

    def find(self, name: str) -> dict[str, Any]:
        """Return the reservation; {} while it cannot be read."""
        done = self.compose("exec", "-T", *self.signing, "ticks", "leasehold", "get", name, "--json", status=None)
        found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return found

    def await_leased(self, name: str) -> None:
        """Wait until the reservation is leased."""
        wait_for(lambda: self.find(name).get("phase") == "leased", f"{name} to be leased", PATIENCE)

    def find_failed(self, *names: str) -> list[dict[str, Any]]:
        return [found for found in map(self.find, names) if found.get("phase") == "failed"]

    def remove(self) -> None:
        """Remove everything that was made, except layers in the builder's cache."""
        self.second.compose("down", "--volumes", "--timeout", "10", status=None)
        self.compose("down", "--volumes", "--timeout", "10", status=None)
        for tag in self.tags:
            run("docker", "image", "rm", f"leasehold:{tag}", f"leasehold-emulator:{tag}")


class SecondHost:
    """The second host of the page: a compose project of its own, with the workers and a beat, in the network of Redis,
    PostgreSQL and EC2.
    """

    def __init__(self, first: Containers) -> None:
        self._first = first
        self.name = f"{first.name}-second"

    def write_network(self) -> None:
        """Write the file by which this project joins the networks of the first host."""
        names = {name: f"{{name: {self._first.name}_{name}, external: true}}" for name in ("data", "outside")}
        lines = [f"  {name}: !override {{network}}".format(network=text) for name, text in names.items()]
        (self._first.compose_folder / "second.yaml").write_text("\n".join(["networks:", *lines, ""]), encoding="utf-8")

    def compose(self, *words: str, status: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run `docker compose WORDS` on this host."""
        return self._first.run_compose(self.name, ["test.yaml", "second.yaml"], *words, status=status)

    def await_healthy(self) -> None:
        wait_for(lambda: {*self._list_health()} == {"healthy"}, "the second host", PATIENCE)

    def _list_health(self) -> list[str]:
        found = [json.loads(line) for line in self.compose("ps", "--all", "--format", "json").stdout.splitlines()]
        assert {each["Service"] for each in found} == {*SECOND_HOST}
        return [each["Health"] for each in found]

    def reserve(self, name: str, *words: str) -> str:
        """Take a lease from this host."""
        asked = ("--system", "x86_64-linux", "--cpus", "1", "--id", name, "--wait", "300")
        return self.compose("exec", "-T", *self._first.signing, "ticks", "leasehold", "reserve", *asked, *words).stdout


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """Yield the project, built and started by the command in the comment of compose.yaml."""
    if not has_engine():
        pytest.skip(NO_ENGINE)
    found = Containers(tmp_path_factory.mktemp("containers"))
    try:
        done = found.compose("up", "--detach", "--build", "--wait", "emulator")
        found.started = done.stdout + done.stderr
        found.create_account()
        done = found.compose("up", "--detach", "--build", status=None)
        assert done.returncode == 0, found.compose("logs", "prepare").stdout[-4000:] + done.stderr[-2000:]
        found.started += done.stdout + done.stderr
        found.await_healthy()
        assert "docker compose exec ticks leasehold principals add anna --role operator" in PAGE
        found.key = found.leasehold("ticks", "principals", "add", "anna", "--role", "operator").splitlines()[-1]
        assert "docker compose up -d --no-deps reservations ticks launch health terminate beat\n" in PAGE
        found.second.compose("up", "-d", "--no-deps", *SECOND_HOST)
        found.second.await_healthy()
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


def test_a_lease_is_taken_on_each_of_two_machines_one_from_each_host_and_the_doctor_finds_nothing(
    containers: Containers,
) -> None:
    containers.reserve("first", cpus=4)
    containers.second.reserve("of-second", "--cpus", "4")
    leases = [lease for name in ("first", "of-second") for lease in containers.find(name)["leases"]]
    # The machines have the image and one of the types that `prepare` found for the pool of the page.
    assert len({lease["instance_id"] for lease in leases}) == 2
    for name in ("first", "of-second"):
        assert f"{name} released" in containers.leasehold("ticks", "release", name)
    found = json.loads(containers.leasehold("ticks", "doctor", "--no-aws", "--timeout", "60", "--json"))
    assert [each for each in found["findings"] if each["outcome"] not in {"ok", "skipped"}] == []
    stated = containers.leasehold("metrics", "status", status=2)
    assert "user metrics may not read the leader lock" in stated


def test_a_beat_that_cannot_sign_fails_its_health_check_with_the_reason(containers: Containers) -> None:
    """This beat has no database, as every beat had before."""
    look = "for _ in $(seq 100); do leasehold-alive beat 2>&1 | grep refuses && exit; sleep 1; done"
    changes = ("-e", "LEASEHOLD_DATABASE__URL=sqlite:////tmp/none.db", "-e", "LEASEHOLD_ACCESS__MODE=open")
    done = containers.compose(
        "run", "--rm", "--no-deps", "-T", *changes, "beat", "sh", "-c", f"python -m tasks.clock & {look}"
    )
    assert re.search(
        r"^leasehold: the worker of the queue \w+ refuses its messages: signature: ", done.stdout, re.MULTILINE
    )
    containers.await_healthy()


def test_a_process_that_hangs_fails_its_health_check_and_recovers(containers: Containers) -> None:
    freeze = "for p in /proc/[0-9]*; do grep -q tasks[.]clock $p/cmdline && kill -{} ${{p#/proc/}}; done; true"
    for name, signal, status in (("beat-2", "STOP", 1), ("beat-2", "CONT", 0)):
        containers.compose("exec", "-T", name, "sh", "-c", freeze.format(signal))
        wait_for(partial(has_check, containers, name, status), f"beat after {signal}", PATIENCE)


def has_check(containers: Containers, service: str, status: int) -> bool:
    done = containers.compose("exec", "-T", service, "leasehold-alive", "beat", status=None)
    return done.returncode == status


def test_a_stop_of_launch_while_ec2_does_not_answer_ends_within_the_grace(containers: Containers) -> None:
    containers.second.compose("stop", "launch")
    containers.compose("pause", "emulator")
    try:
        for name in ("second", "third"):
            containers.leasehold("ticks", "reserve", "--system", "x86_64-linux", "--cpus", "8", "--id", name)
        wait_for(partial(is_connected, containers, "launch"), "a call to EC2", PATIENCE)
        containers.compose("stop", "launch")
    finally:
        containers.compose("unpause", "emulator")
    ended = containers.list_containers()["launch"]
    assert (ended["State"], ended["ExitCode"] == KILLED) == ("exited", False)
    log = containers.compose("logs", "--no-log-prefix", "launch").stdout
    assert '"action": "worker.left"' in log
    assert "Traceback" not in log
    for host in (containers, containers.second):
        host.compose("up", "--detach", "--no-deps", "launch")
    for name in ("second", "third"):
        containers.await_leased(name)


def is_connected(containers: Containers, service: str) -> bool:
    """Return whether a process of the service has an open connection to the emulator's port."""
    table = containers.compose("exec", "-T", service, "cat", "/proc/net/tcp").stdout.splitlines()[1:]
    established, port = "01", f"{4579:04X}"
    return any(words[2].endswith(f":{port}") and words[3] == established for words in map(str.split, table))


def test_a_killed_redis_recovers_and_no_lease_is_lost(containers: Containers) -> None:
    before = {name: containers.find(name)["leases"] for name in ("second", "third")}
    containers.compose("kill", "redis")
    containers.compose("up", "--detach", "--no-deps", "redis")
    containers.reserve("after")
    assert {name: containers.find(name)["leases"] for name in before} == before
    containers.await_healthy()
    containers.second.await_healthy()


def test_the_second_host_takes_over_when_the_first_one_dies(containers: Containers) -> None:
    assert "run `docker compose kill` on one host" in PAGE
    containers.compose("kill", *WORKERS, "beat", "beat-2")
    containers.second.reserve("taken-over")
    containers.compose("up", "--detach", "--no-deps", *WORKERS, "beat", "beat-2")
    containers.await_healthy()


def test_an_upgrade_as_the_page_describes_replaces_every_process_and_keeps_the_leases(containers: Containers) -> None:
    """The emulator is not upgraded, because its machines end with it; EC2's do not."""
    assert "docker compose run --rm --no-deps prepare" in PAGE
    assert "docker compose up -d --no-deps $(docker compose ps --services)" in PAGE
    kept = ("second", "third", "after", "taken-over")
    before = {name: containers.find(name)["leases"] for name in kept}
    assert all(before.values())
    new = containers.tags[1]
    with (containers.folder / "leasehold" / "__init__.py").open("a", encoding="utf-8") as file:
        file.write("\n# The next version.\n")
    containers.set_values({"IMAGE_TAG": new})
    containers.compose("build", "prepare")
    containers.compose("run", "--rm", "--no-deps", "-T", "prepare")
    for host in (containers, containers.second):
        services: Sequence[str] = host.compose("ps", "--services").stdout.split()
        assert "beat" in services
        host.compose("up", "-d", "--no-deps", *(name for name in services if name != "emulator"))
        host.await_healthy()
    images = {name: each["Image"] for name, each in containers.list_containers().items()}
    ours = {name: image for name, image in images.items() if name in OURS and name != "emulator"}
    assert set(ours) == {*OURS} - {"emulator"}
    assert all(image.endswith(f":{new}") for image in ours.values())
    assert {name: containers.find(name)["leases"] for name in kept} == before
    containers.reserve("upgraded")


def test_leased_reservations_fail_when_the_emulator_and_its_machines_are_gone(containers: Containers) -> None:
    """For Leasehold EC2 has lost all machines. A machine that is not found counts as lost when it is five minutes old;
    the reservation of the oldest machine fails first.
    """
    containers.compose("build", "emulator")
    containers.compose("up", "-d", "--no-deps", "--wait", "emulator")
    gone = wait_for(lambda: containers.find_failed("second", "third", "after"), "a lease without its machine", PATIENCE)
    assert {each["reason"] for each in gone} == {"slot_gone"}
    # The launch template and the subnets are gone with it.
    containers.create_account()
    containers.compose("run", "--rm", "--no-deps", "-T", "prepare")
    containers.reserve("last")
