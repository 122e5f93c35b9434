"""Choose the configuration of an embedded stack before it starts: URLs, ports, secrets, and the environment of its
processes. Find the address by which the user of a stack opens the console: it has the token of the stack.
"""

import os
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from leasehold.stack.programs import Program
from leasehold.web.token_file import TOKEN_FILE, TokenFileError, read_token
from scheduler.protocol.names import OWN_STACK_VARIABLE
from scheduler.store.revisions import make_sqlite_url
from workers.configuration import PATH_VARIABLE, USUAL_PATH, read_configuration
from workers.ec2 import EMULATOR_SECRET_VARIABLE
from workers.embedded_redis import NO_SERVER, find_redis_server, prepare_redis
from workers.setting_types import SecretText
from workers.settings import AwsSettings, BrokerSettings, DatabaseSettings, Settings, read_settings

REDIS: Final = "redis"
EMULATOR: Final = "emulator"
SECRET_KEY_VARIABLE: Final = "LEASEHOLD_AWS__SECRET_ACCESS_KEY"  # noqa: S105 - a name
EMULATED_ACCOUNT: Final = "123456789012"
"""The AWS account of all machines and queues of the emulator; it is a part of the queues' URLs."""
EMULATED_ROLE: Final = f"{EMULATED_ACCOUNT}:emulated-host"
"""The role of the machines that the emulator plays as processes."""
NOTICES: Final = "leasehold-interruptions"
"""Name of the emulator's SQS queue for interruption notices."""
_SECRET_BYTES: Final = 32
_FOUND: Final[set[int]] = set()
"""The ports that this process has found to be free."""
PORT_LOCKS: Final = Path(".local", "state", "leasehold", "ports")
"""Folder in the home of the user with a locked file for each port that a stack has chosen."""


CONSOLE: Final = "console"
CONSOLE_PORT: Final = "LEASEHOLD_CONSOLE__PORT"
TOKEN_VARIABLE: Final = "LEASEHOLD_CONSOLE__TOKEN_FILE"  # noqa: S105 - a name
_FLOWER_URL: Final = "LEASEHOLD_CONSOLE__FLOWER_URL"


class StackError(Exception):
    """Raised if the stack cannot start or does not stay up. The message is the reason in one line; `details`: the last
    warning of each process.
    """

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        self.details = tuple(details)
        super().__init__(message)


@dataclass(frozen=True)
class StackConfiguration:
    """The configuration of one embedded stack: settings, rules, URLs, the environment of its processes, and the
    programs that it runs in addition to those of the Procfile.

    `rules`: the rules to apply at the start; None: the rules in the database stay.
    """

    settings: Settings
    rules: dict[str, Any] | None
    broker_url: str
    database_url: str
    emulator_url: str | None
    environment: dict[str, str]
    programs: tuple[Program, ...]

    @property
    def urls(self) -> dict[str, str]:
        """The web addresses of the stack's parts by name: `flower`, `metrics`, `console` if its extra is installed, and
        `emulator` if the stack runs one. The address of the console is without its token.
        """
        found = {
            "flower": f"http://{self.settings.flower.host}:{self.environment['LEASEHOLD_FLOWER__PORT']}",
            "metrics": f"http://{self.settings.metrics.host}:{self.environment['LEASEHOLD_METRICS__PORT']}/metrics",
        }
        if has_console():
            console = self.settings.console
            found["console"] = f"http://{console.host}:{self.environment[CONSOLE_PORT]}{console.prefix}/"
        return found | ({"emulator": self.emulator_url} if self.emulator_url else {})

    def move(self, name: str) -> list[str]:
        """Choose another port for a web page: `flower`, `metrics` or `console`. Return the names of the programs that
        have to be started again.
        """
        old = self.environment[f"LEASEHOLD_{name.upper()}__PORT"]
        self.environment[f"LEASEHOLD_{name.upper()}__PORT"] = str(find_free_port())
        if name != "flower" or self.settings.console.flower_url:
            return [name]
        linked = self.environment[_FLOWER_URL].removesuffix(f":{old}")
        self.environment[_FLOWER_URL] = f"{linked}:{self.environment['LEASEHOLD_FLOWER__PORT']}"
        return [name, CONSOLE]

    @property
    def moved_ports(self) -> list[str]:
        """A line for each configured port that was in use, with the port that was taken instead and the variable that
        sets another one.
        """
        wanted = {"flower": self.settings.flower.port, "metrics": self.settings.metrics.port}
        wanted |= {CONSOLE: self.settings.console.port} if has_console() else {}
        taken = {name: self.environment[f"LEASEHOLD_{name.upper()}__PORT"] for name in wanted}
        return [
            f"{name}.port {port} is in use, so {name} listens on {taken[name]};"
            f" LEASEHOLD_{name.upper()}__PORT sets another"
            for name, port in wanted.items()
            if str(port) != taken[name]
        ]


def configure(
    directory: Path,
    folder: Path,
    *,
    config: Path | None = None,
    rules: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    emulator: Mapping[str, float] | None = None,
) -> StackConfiguration:
    """Return the configuration of a stack: the values of leasehold.toml, and chosen values for keys that the file does
    not set.

    `directory`: the folder in which leasehold.toml is searched if neither `config` nor LEASEHOLD_CONFIG names a file.
    `folder`: where the stack keeps its files. `rules`, `environment`, `emulator`: as for Stack. Raises
    InvalidInputError for a wrong configuration, StackError if no Redis server is installed, and ModuleNotFoundError if
    the emulator is needed and not installed.
    """
    named, usual = config or os.environ.get(PATH_VARIABLE), directory / USUAL_PATH
    path = Path(named).absolute() if named else usual if os.path.lexists(usual) else None
    found = read_configuration(path) if path else None
    settings = found.settings if found else read_settings({})
    broker_url, redis_programs = _plan_redis(settings, folder)
    is_default = settings.database_url == DatabaseSettings().url.get_secret_value()
    database_url = make_sqlite_url(folder / "leasehold.db") if is_default else settings.database_url
    document = dict(rules) if rules is not None else found.rules_document if found else None
    has_agents = _has_agents(document)
    emulator_url, emulator_programs, emulator_environment = _plan_emulator(
        settings, folder, {**(emulator or {}), **({"run_user_data": True} if has_agents else {})}
    )
    console_port = _free_or_any(settings.console.host, settings.console.port)
    chosen = {
        "LEASEHOLD_FLOWER__PORT": str(_free_or_any(settings.flower.host, settings.flower.port)),
        "LEASEHOLD_METRICS__PORT": str(_free_or_any(settings.metrics.host, settings.metrics.port)),
        CONSOLE_PORT: str(console_port),
        **({} if settings.console.token_file else {TOKEN_VARIABLE: str(folder / TOKEN_FILE)}),
        **({PATH_VARIABLE: str(path)} if path else {}),
        "LEASEHOLD_BROKER__URL": broker_url,
        "LEASEHOLD_DATABASE__URL": database_url,
        # Only the owner of the stack knows the password of its own Redis.
        OWN_STACK_VARIABLE: "1" if redis_programs else "0",
        **emulator_environment,
        **(_plan_joining(emulator_environment, settings, console_port) if has_agents else {}),
        # `leasehold alive beat` reads the age of this file.
        **({} if settings.celery.beat_file else {"LEASEHOLD_CELERY__BEAT_FILE": str(folder / "beat")}),
        **(environment or {}),
    }
    if not settings.console.flower_url:
        chosen.setdefault(_FLOWER_URL, f"http://{settings.flower.host}:{chosen['LEASEHOLD_FLOWER__PORT']}")
    changed = {
        "broker": BrokerSettings(url=SecretText(broker_url)),
        "database": settings.database.model_copy(update={"url": SecretText(database_url)}),
        "aws": settings.aws.model_copy(update=_name_emulator(emulator_environment)),
    }
    return StackConfiguration(
        settings=settings.model_copy(update=changed),
        rules=document,
        broker_url=broker_url,
        database_url=database_url,
        emulator_url=emulator_url,
        environment=chosen,
        programs=(*redis_programs, *emulator_programs),
    )


def _has_agents(rules: Mapping[str, Any] | None) -> bool:
    """Return whether a pool of these rules, which may be wrong, has machines with agents."""
    pools = (rules or {}).get("pools")
    found = pools.values() if isinstance(pools, Mapping) else ()
    return any(isinstance(each, Mapping) and each.get("agent") is True for each in found)


def _plan_joining(emulator: Mapping[str, str], settings: Settings, port: int) -> dict[str, str]:
    """Return the variables by which machines that the emulator plays join over the stack's HTTP API; {} without an
    emulator, because machines of EC2 cannot reach this host.
    """
    if not emulator or settings.access.join_url:
        return {}
    return {
        "LEASEHOLD_ACCESS__JOIN_URL": f"http://127.0.0.1:{port}{settings.console.prefix}",
        "LEASEHOLD_ACCESS__JOIN_ROLES": EMULATED_ROLE,
    }


def _name_emulator(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of AWS with which this process reads instance types and prices from the emulator.
    `environment`: the variables that the other processes get for the emulator; if it is empty, there is no emulator,
    and {} is returned.
    """
    if not environment:
        return {}
    return {
        "endpoint_url": environment["LEASEHOLD_AWS__ENDPOINT_URL"],
        "region": environment["LEASEHOLD_AWS__REGION"],
        "access_key_id": SecretText(environment["LEASEHOLD_AWS__ACCESS_KEY_ID"]),
        "secret_access_key": SecretText(environment[SECRET_KEY_VARIABLE]),
    }


def has_console() -> bool:
    """Return whether the extra `console` is installed."""
    return all(find_spec(library) is not None for library in ("jinja2", "starlette", "uvicorn"))


def _plan_redis(settings: Settings, folder: Path) -> tuple[str, tuple[Program, ...]]:
    """Return (URL, programs) of the stack's Redis: the configured Redis and no program, or, if none is configured, the
    stack's own server on a free port and its program.

    The own server has a random password, because every user of the host can connect to the port.
    """
    if settings.broker_url:
        return settings.broker_url, ()
    binary = find_redis_server()
    if binary is None:
        raise StackError(NO_SERVER)
    directory, port = folder / REDIS, find_free_port()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    password = secrets.token_urlsafe(_SECRET_BYTES)
    command = prepare_redis(binary, directory, port, {"logfile": "", "requirepass": password})
    return f"redis://:{password}@127.0.0.1:{port}/0", (Program(REDIS, tuple(command)),)


def uses_emulator(aws: AwsSettings) -> bool:
    return not (aws.endpoint_url or aws.region or aws.profile or aws.access_key_id)


def _plan_emulator(
    settings: Settings, folder: Path, options: Mapping[str, float | bool]
) -> tuple[str | None, tuple[Program, ...], dict[str, str]]:
    """Return (URL, programs, environment variables) of the emulator; (None, (), {}) if leasehold.toml configures AWS,
    because no emulator runs then. Raises ModuleNotFoundError if the extra `emulator` is not installed.

    Variables AWS_… of the environment do not count as a configuration: they may be set for other programs, and a trial
    must not launch real machines.

    The emulator serves only requests that are signed with its random secret key or send it as password. Every user of
    the host can connect to its port, and could otherwise end machines or read the bootstrap tokens in user data.
    """
    if not uses_emulator(settings.aws):
        return None, (), {}
    if find_spec("moto") is None:
        raise ModuleNotFoundError("No module named 'moto'", name="moto")
    port = find_free_port()
    command = [sys.executable, "-m", "leasehold_emulator", "--port", str(port)]
    command += ["--call-log", str(folder / "logs" / "ec2-calls.jsonl")]
    for name, value in options.items():
        # An option that is True is a flag.
        command += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    url, secret = f"http://127.0.0.1:{port}", secrets.token_urlsafe(_SECRET_BYTES)
    command += ["--interruption-queue", NOTICES]
    variables = {
        "LEASEHOLD_AWS__INTERRUPTION_QUEUE": f"{url}/{EMULATED_ACCOUNT}/{NOTICES}",
        "LEASEHOLD_AWS__ENDPOINT_URL": url,
        "LEASEHOLD_AWS__REGION": "us-east-1",
        "LEASEHOLD_AWS__ACCESS_KEY_ID": "emulator",
        SECRET_KEY_VARIABLE: secret,
    }
    return url, (Program(EMULATOR, tuple(command), {EMULATOR_SECRET_VARIABLE: secret}),), variables


def _free_or_any(host: str, port: int) -> int:
    """Return `port` if it is free, else any free port, because another stack on this host may use `port`.

    A stack that is starting has chosen its ports before its programs listen on them. So this process keeps a lock on
    the chosen port, and another stack of this user that starts at the same time chooses a different one.
    """
    try:
        found = find_free_port(host, port)
    except OSError:
        return find_free_port()
    return found if _lock_port(found) else find_free_port()


def _lock_port(port: int) -> bool:
    """Lock this port for this stack until this process ends. Return True, or False if another stack of this user, or
    this process before, has locked the port.

    Where there are no file locks, or no folder for them can be made, True is returned for every port.
    """
    if find_spec("fcntl") is None:
        return True
    import fcntl  # noqa: PLC0415 - Windows has none

    try:
        folder = Path.home() / PORT_LOCKS
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / str(port), os.O_RDWR | os.O_CREAT, 0o600)
    except (OSError, RuntimeError):
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    return True


def find_free_port(host: str = "127.0.0.1", port: int = 0) -> int:
    """Return `port`, or for 0 any port, if no process listens on it. Raises OSError if a process does.

    For 0, a process never gets a port twice: the program that is to listen on it may start later.
    """
    while True:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            found: int = listener.getsockname()[1]
        if port or found not in _FOUND:
            _FOUND.add(found)
            return found


def find_console_url(urls: Mapping[str, str], environment: Mapping[str, str]) -> str | None:
    """Return the address with the token, or None if the stack runs no console. The token is read from its file, because
    run.json does not contain it. Without a readable file the address is returned without a token.
    """
    url, path = urls.get(CONSOLE), environment.get(TOKEN_VARIABLE)
    if url is None or path is None:
        return url
    try:
        return f"{url}?token={quote(read_token(Path(path)))}"
    except TokenFileError:
        return url
