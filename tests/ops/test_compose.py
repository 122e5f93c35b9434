"""compose/ starts the processes of the Procfile, with existing settings and no unnecessary rights.

The file is read by Compose's own rules as far as they are used: YAML with merge keys, `${NAME}`, `${NAME:-default}`,
`${NAME:?message}`.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import yaml

from leasehold.liveness import PROCESSES
from leasehold.stack.programs import read_procfile
from scheduler.model.validation import Document, parse_duration
from scheduler.protocol.names import QUEUE_NAMES
from tests.ops.test_metrics_page import read_table
from workers.configuration import PATH_VARIABLE, read_configuration
from workers.environment import DELIMITER, PREFIX, inner_model
from workers.settings import Settings, read_settings

ROOT: Final = Path(__file__).parents[2]
COMPOSE: Final = ROOT / "compose"
CONSOLE_URLS: Final = ("VIEW__URL", "CONSOLE__QUEUES_URL")
USERS: Final = {"flower": "monitor", "console": "producer", "prepare": "leasehold", "beat-2": "beat"}
"""Services whose user of Redis has another name than the service."""
DOCUMENT: Final[dict[str, Any]] = yaml.safe_load((COMPOSE / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: Final[dict[str, dict[str, Any]]] = DOCUMENT["services"]
PROGRAMS: Final = {program.name: program.command for program in read_procfile((ROOT / "Procfile").read_text())}
VARIABLE: Final = re.compile(r"\$\{([A-Z_]+)(?::([-?])([^}]*))?\}")
SOFT_SHUTDOWN: Final = "LEASEHOLD_CELERY__SOFT_SHUTDOWN"


def words_of(service: dict[str, Any]) -> list[str]:
    command = service.get("command", [])
    return shlex.split(command) if isinstance(command, str) else command


def environment_of(service: dict[str, Any]) -> dict[str, str]:
    return dict(service.get("environment", {}))


def read_example() -> dict[str, str]:
    lines = (COMPOSE / "env.example").read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {name: value for name, _, value in pairs}


def variables() -> Iterator[tuple[str, str, str]]:
    """Yield (name, form, default or message) of every variable in the file."""
    for match in VARIABLE.finditer((COMPOSE / "compose.yaml").read_text(encoding="utf-8")):
        yield match[1], match[2] or "", match[3] or ""


def fill_in(text: str, values: dict[str, str]) -> str:
    return VARIABLE.sub(lambda match: values.get(match[1]) or (match[3] if match[2] == "-" else "") or "", text)


def has_setting(name: str) -> bool:
    found: Any = Settings
    for part in name.removeprefix(PREFIX).lower().split(DELIMITER):
        model = inner_model(found)
        if not (isinstance(model, type) and issubclass(model, Document)) or part not in model.model_fields:
            return False
        found = model.model_fields[part].annotation
    return True


def ours() -> dict[str, dict[str, Any]]:
    """Return the services that run our images."""
    images = ("leasehold:", "leasehold-emulator:")
    return {name: service for name, service in SERVICES.items() if service["image"].startswith(images)}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_line_of_the_procfile_is_a_service_with_its_command(name: str) -> None:
    assert ["python", *PROGRAMS[name][1:]] == words_of(SERVICES[name])
    assert PROGRAMS[name][0] == sys.executable


def test_compose_runs_two_beats_and_no_process_that_the_procfile_lacks() -> None:
    assert words_of(SERVICES["beat-2"]) == words_of(SERVICES["beat"])
    assert set(ours()) == {*PROGRAMS, "beat-2", "prepare", "emulator"}


def test_every_variable_of_a_service_is_a_setting() -> None:
    names = {name for service in SERVICES.values() for name in environment_of(service) if name.startswith(PREFIX)}
    assert [name for name in sorted(names - {PATH_VARIABLE}) if not has_setting(name)] == []
    assert len(names) > 10
    assert not has_setting("LEASEHOLD_BROKER__ADDRESS")
    assert not has_setting("LEASEHOLD_BROKERS")


def test_the_example_has_exactly_the_variables_of_the_file() -> None:
    assert {name for name, _, _ in variables()} == set(read_example())


def test_every_variable_of_the_example_is_explained_above_it() -> None:
    paragraphs = (COMPOSE / "env.example").read_text(encoding="utf-8").split("\n\n")[1:]
    assert all(paragraph.startswith("# ") for paragraph in paragraphs)


@pytest.mark.parametrize("name", sorted(ours()))
def test_the_example_gives_every_service_valid_settings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in environment_of(SERVICES[name]).items():
        if variable.startswith(PREFIX) and variable != PATH_VARIABLE:
            monkeypatch.setenv(variable, fill_in(str(value), read_example()))
    assert isinstance(read_settings(), Settings)


def test_the_rules_that_are_shipped_can_be_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PATH_VARIABLE, raising=False)
    assert read_configuration(COMPOSE / "leasehold.toml").rules.pools


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"prepare"}))
def test_every_service_that_keeps_running_has_a_health_check(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] in {"CMD", "CMD-SHELL"}
    assert parse_duration(check["timeout"]) < parse_duration(check["interval"]) or name in {"redis", "postgres"}


@pytest.mark.parametrize("name", sorted(set(ours()) - {"prepare"}))
def test_the_health_check_of_a_process_checks_its_work(name: str) -> None:
    """A worker by the canaries on its queue, never by Celery's ping; without a start of Python."""
    asked = SERVICES[name]["healthcheck"]["test"]
    assert asked == ["CMD", "leasehold-alive", name.removesuffix("-2")]
    assert asked[-1] in PROCESSES


@pytest.mark.parametrize("name", sorted(ours()))
def test_processes_with_tasks_get_more_time_than_the_soft_shutdown(name: str) -> None:
    service = SERVICES[name]
    soft = float(environment_of(service).get(SOFT_SHUTDOWN, Settings().celery.soft_shutdown))
    assert parse_duration(service["stop_grace_period"]) > soft
    if "tasks.worker" in words_of(service):
        assert (soft, service["stop_signal"]) == (30, "SIGQUIT")


def test_only_ports_on_loopback_are_published_and_none_of_the_databases() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"flower", "console", "prometheus"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    assert {name: SERVICES[name]["networks"] for name in ("redis", "postgres")} == {
        "redis": ["data"],
        "postgres": ["data"],
    }
    assert DOCUMENT["networks"]["data"]["internal"] is True


def test_redis_evicts_nothing_writes_to_disk_and_knows_its_users() -> None:
    shell, _, script, *words = words_of(SERVICES["redis"])
    assert (shell, words[0]) == ("sh", "redis-server")
    options = dict(zip(words[1::2], words[2::2], strict=True))
    assert options["--maxmemory-policy"] == "noeviction"
    assert options["--appendonly"] == "yes"
    # Mode 600 of the mounted file is enough, because root copies it for Redis' user.
    mounted = "/etc/redis/users.acl"
    assert f"./redis/users.acl:{mounted}:ro" in SERVICES["redis"]["volumes"]
    assert script.startswith(f"install -o redis -g redis -m 400 {mounted} {options['--aclfile']} && ")
    assert script.endswith('exec setpriv --reuid redis --regid redis --init-groups "$$0" "$$@"')


@pytest.mark.parametrize("name", sorted(ours()))
def test_no_image_of_ours_is_ever_pulled_and_each_is_built_once(name: str) -> None:
    """No registry has our images, and building one for each service would make ten."""
    service = SERVICES[name]
    assert service["pull_policy"] == "never"
    target = {"prepare": "leasehold", "emulator": "emulator"}.get(name)
    assert service.get("build", {}).get("target") == target
    if target:
        assert service["build"]["secrets"] == ["pip"]
        stages = re.findall(r"^FROM \S+ AS (\S+)", (COMPOSE / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
        assert target in stages


def test_pip_needs_no_configuration_to_build() -> None:
    assert DOCUMENT["secrets"] == {"pip": {"file": "${PIP_CONFIG_FILE:-/dev/null}"}}
    assert read_example()["PIP_CONFIG_FILE"] == ""


def test_the_user_of_the_containers_is_that_of_the_image_unless_another_is_set() -> None:
    default = {"${CONTAINER_USER:-10001:10001}"}
    assert {service["user"] for service in ours().values()} == default
    assert read_example()["CONTAINER_USER"] == "10001:10001"
    assert "USER 10001:10001\n" in (COMPOSE / "Dockerfile").read_text(encoding="utf-8")


def test_the_upgrade_takes_every_service_that_runs_on_the_host() -> None:
    page = (ROOT / "docs" / "how-to" / "aws.md").read_text(encoding="utf-8")
    upgrade = page.partition("## Upgrades")[2].partition("\n## ")[0]
    assert "docker compose up -d --no-deps $(docker compose ps --services)" in upgrade


@pytest.mark.parametrize("name", sorted(set(ours()) - {"emulator"}))
def test_every_service_is_its_own_user_of_redis(name: str) -> None:
    url = urlsplit(fill_in(environment_of(SERVICES[name])["LEASEHOLD_BROKER__URL"], read_example()))
    assert url.username == USERS.get(name, name)
    users = (COMPOSE / "redis" / "users.acl").read_text(encoding="utf-8")
    assert f"user {url.username} on >{url.password} " in users


def test_flower_counts_messages_as_the_user_that_may_read_queues() -> None:
    url = urlsplit(fill_in(environment_of(SERVICES["flower"])["LEASEHOLD_VIEW__URL"], read_example()))
    assert url.username == "queues"


def test_the_console_follows_the_view_as_its_own_user_and_counts_messages_as_another() -> None:
    environment, example = environment_of(SERVICES["console"]), read_example()
    view, queues = (urlsplit(fill_in(environment[f"LEASEHOLD_{name}"], example)) for name in CONSOLE_URLS)
    assert (view.username, queues.username) == ("console", "queues")
    users = (COMPOSE / "redis" / "users.acl").read_text(encoding="utf-8")
    assert f"user {view.username} on >{view.password} " in users


def test_secrets_are_required_and_have_no_default() -> None:
    kinds = {name: kind for name, kind, _ in variables()}
    guards = {
        *(f"{name}BROKER_URL" for name in ("", "FLOWER_", "METRICS_", "CONSOLE_", "BEAT_")),
        *(f"{name.upper()}_BROKER_URL" for name in QUEUE_NAMES),
        "QUEUES_URL",
        "CONSOLE_VIEW_URL",
        "DATABASE_URL",
        "POSTGRES_PASSWORD",
        "FLOWER_AUTH",
    }
    assert {name: kinds[name] for name in guards} == dict.fromkeys(guards, "?")
    assert environment_of(SERVICES["flower"])["LEASEHOLD_FLOWER__BASIC_AUTH"].startswith("${FLOWER_AUTH:?")
    assert all(message for _, kind, message in variables() if kind == "?")


def test_every_image_names_one_version() -> None:
    foreign = {name: service["image"] for name, service in SERVICES.items() if name not in ours()}
    assert [image for image in foreign.values() if not re.search(r":v?\d+\.\d+(\.\d+)?(-|$)", image)] == []
    froms = re.findall(r"^FROM (\S+)", (COMPOSE / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    stages = {"build", "runtime"}
    (base,) = set(froms) - stages
    assert re.search(r":\d+\.\d+\.\d+-", base)


def test_every_mounted_file_exists() -> None:
    mounted = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())}
    files = {volume for volume in mounted if volume.startswith("./")}
    assert [file for file in sorted(files) if not (COMPOSE / file).exists()] == []
    assert mounted - files == set(DOCUMENT["volumes"])


@pytest.mark.parametrize("name", sorted(ours()))
def test_a_container_has_no_unnecessary_rights(name: str) -> None:
    service = SERVICES[name]
    assert (service["read_only"], service["cap_drop"], service["init"]) == (True, ["ALL"], True)


def test_only_processes_that_call_ec2_get_aws_roles() -> None:
    reported = {name for name, service in SERVICES.items() if "AWS_CONFIG_FILE" in environment_of(service)}
    profiled = {name for name, service in SERVICES.items() if "LEASEHOLD_AWS__PROFILE" in environment_of(service)}
    assert reported == profiled == {"launch", "health", "terminate", "prepare"}
    mounted = {name for name, service in SERVICES.items() if any("aws-config" in each for each in service["volumes"])}
    keyed = {name for name, service in SERVICES.items() if "LEASEHOLD_AWS__ACCESS_KEY_ID" in environment_of(service)}
    assert mounted == keyed == profiled


def test_prepare_looks_images_types_and_prices_up_with_the_role_that_may_read_them() -> None:
    asked = {name: environment_of(SERVICES[name]) for name in ("prepare", "health")}
    names = {name for name in asked["health"] if "AWS" in name}
    assert "LEASEHOLD_AWS__REGION" in names
    assert all(asked["prepare"][name] == asked["health"][name] for name in names)
    # The emulator is asked too, if it is started.
    assert SERVICES["prepare"]["depends_on"]["emulator"] == {"condition": "service_healthy", "required": False}


def test_each_process_that_sends_tasks_signs_them_and_no_other_gets_the_database() -> None:
    """The key of the signature is in the database. Flower sends no tasks."""
    signing = {"reservations", "ticks", "launch", "health", "terminate", "beat", "beat-2"}
    stored = {name for name, service in SERVICES.items() if "LEASEHOLD_DATABASE__URL" in environment_of(service)}
    modes = {name for name, service in SERVICES.items() if "LEASEHOLD_ACCESS__MODE" in environment_of(service)}
    # `prepare` applies rules; the console and the metrics read the database.
    assert stored == modes == {*signing, "prepare", "console", "foresight", "metrics"}


def test_the_image_contains_the_wheel_runs_without_root_and_stops_softly() -> None:
    text = (COMPOSE / "Dockerfile").read_text(encoding="utf-8")
    # A named frontend would be another image to pull. BuildKit's own supports everything that is used.
    assert "syntax=" not in text
    for needed in ("hatchling build -t wheel", "--require-hashes", "USER 10001", "STOPSIGNAL SIGQUIT", "HEALTHCHECK"):
        assert needed in text
    assert "REMAP_SIGTERM=SIGQUIT" in text
    assert "://" not in text
    copied = [word for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    ignored = (COMPOSE / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[1] == "*"
    assert {f"!{name.rstrip('/')}" for name in copied} == {line for line in ignored if line.startswith("!")}


def test_the_image_is_locked_to_the_versions_that_are_tested() -> None:
    def pins(path: Path) -> set[str]:
        return set(re.findall(r"^[a-z0-9._-]+==[^\s\\]+", path.read_text(encoding="utf-8"), re.MULTILINE))

    tested = pins(ROOT / "requirements.lock")
    for lock in ("requirements.lock", "emulator.lock", "build.lock"):
        locked = pins(COMPOSE / lock)
        assert locked
        assert locked <= tested
    assert "celery==5.6.3" in pins(COMPOSE / "requirements.lock")
    assert not {pin for pin in pins(COMPOSE / "requirements.lock") if pin.startswith(("pytest", "mypy", "ruff"))}
    # The stage of the emulator installs into the packages of the other stage.
    assert pins(COMPOSE / "requirements.lock") < pins(COMPOSE / "emulator.lock")
    assert not {pin for pin in pins(COMPOSE / "requirements.lock") if pin.startswith(("moto", "sympy"))}


def test_prometheus_reads_the_metrics_process_and_every_alert_uses_an_existing_metric() -> None:
    scraped = yaml.safe_load((COMPOSE / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    targets = [
        target for job in scraped["scrape_configs"] for each in job["static_configs"] for target in each["targets"]
    ]
    assert targets == [f"metrics:{Settings().metrics.port}"]
    assert [Path(file).name for file in scraped["rule_files"]] == ["alerts.yml"]
    (group,) = yaml.safe_load((COMPOSE / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    known = set(read_table())
    for rule in group["rules"]:
        expression = rule["expr"]
        names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"leasehold_[a-z_]+", expression)}
        assert names <= known, rule["alert"]
        assert names or "up{" in expression
        assert expression.count("(") == expression.count(")")
        assert set(rule["annotations"]) == {"summary", "action"}
