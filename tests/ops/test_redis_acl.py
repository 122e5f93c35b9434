"""compose/redis/users.acl on a real Redis: each role can do its work and nothing else."""

import base64
import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import redis

from leasehold import Client
from leasehold.errors import Unavailable
from leasehold.web.token_file import TOKEN_FILE, read_token, write_token
from scheduler.protocol.names import QUEUE_NAMES
from scheduler.view.connection import make_redis
from tasks.alive import read_sign
from testbed.processes import Process, wait_for
from testbed.stack import ROOT, Stack
from tests.cli.conftest import Run, run
from tests.redis_roles import RedisWithRoles, read_rules
from tests.system.conftest import RULES
from workers.embedded_redis import RedisServer

__all__ = ["run"]

FLOWER_AUTH: Final = "operator:flower-password"
ROLES: Final = ("leasehold", "producer", "reader", "monitor", "metrics", "host", "console", "queues")
"""Each user of its own kind, but beat: its rights are tried apart, because it sends to all queues."""

ADMINISTRATION: Final = (
    *("FLUSHALL", "FLUSHDB", "KEYS *", "SCAN 0", "CONFIG GET bind", "ACL LIST", "SHUTDOWN", "CLIENT KILL TYPE normal"),
    *("MONITOR", "SCRIPT FLUSH", "SLOWLOG GET", "REPLICAOF NO ONE", "SORT ticks"),
)
FOREIGN: Final = [
    *((role, words) for role in (*ROLES, "beat") for words in ADMINISTRATION),
    # Beat sends tasks and takes the answers of its canaries; it runs no operation.
    *(("beat", f"GET leasehold:{key}") for key in ("leader", "metrics", "view:generation", "queue:taken")),
    *(("beat", words) for words in ("HSET leasehold:view:slots warm-1 {}", "LPUSH leasehold:view:gone x")),
    *(("beat", words) for words in ("SET leasehold:leader x", "SET leasehold:clock 0", "LPUSH shop x", "INFO")),
    *(("beat", f"{command} ticks") for command in ("RPOP", "LPOP", "DEL", "LLEN")),
    *(("beat", words) for words in ("RPUSH ticks x", "LRANGE ticks 0 -1", "HGET unacked x", "EVAL return(1) 0")),
    *(("beat", words) for words in ("PUBLISH /0.celery.pidbox {}", "PUBLISH leasehold:notice:x {}", "PSUBSCRIBE *")),
    # The view and the leadership, which all processes rely on.
    *((role, "HSET leasehold:view:slots warm-1 {}") for role in ROLES[1:]),
    *((role, "SET leasehold:view:generation x") for role in ROLES[1:]),
    *((role, "DEL leasehold:view:reservations") for role in ROLES[1:]),
    *((role, "LPUSH leasehold:view:gone x") for role in ROLES[1:]),
    *((role, "SET leasehold:leader x") for role in ROLES[1:]),
    *((role, "GET leasehold:leader") for role in ROLES[1:]),
    *((role, "HINCRBYFLOAT leasehold:metrics x 1") for role in ROLES[1:]),
    # Clients compare deadlines with it.
    *((role, "SET leasehold:clock 0") for role in ROLES[1:]),
    *((role, "GET leasehold:clock") for role in ("producer", "monitor", "queues")),
    # Messages: producers may add them to one queue; only workers may take them or return them.
    *((role, f"RPUSH {queue} x") for role in ROLES[1:] for queue in ("reservations", "terminate")),
    *((role, f"LPUSH {queue} x") for role in ROLES[1:] for queue in ("ticks", "launch", "health", "terminate")),
    *((role, "LPUSH reservations x") for role in ("reader", "monitor", "metrics", "host", "console", "queues")),
    *((role, "LPUSH shop x") for role in ROLES[1:]),
    *(
        (role, f"{command} reservations 0")
        for role in ("producer", "reader", "metrics", "host", "console", "queues")
        for command in ("BRPOP", "BLPOP")
    ),
    *((role, f"{command} reservations") for role in ROLES[1:] for command in ("RPOP", "LPOP")),
    *((role, "LRANGE reservations 0 -1") for role in ROLES[1:]),
    *((role, "HGET unacked x") for role in ROLES[1:]),
    *((role, "DEL unacked") for role in ROLES[1:]),
    # Flower's user can neither read nor change a queue.
    *(
        ("monitor", f"{command} {rest}".strip())
        for command, rest in (
            *(("SET reservations", "x"), ("GET reservations", ""), ("DEL ticks", ""), ("PEXPIRE ticks", "1")),
            *(("SADD reservations", "x"), ("SREM ticks", "x"), ("ZADD launch", "1 x"), ("HSET health", "a b")),
            *(("LLEN ticks", ""), ("LINDEX reservations", "0"), ("BRPOP reservations", "1"), ("EXISTS ticks", "")),
            *(("EVAL return(redis.call('DEL',KEYS[1])) 1", "reservations"), ("SET _kombu.binding.ticks", "x")),
            *(("ZADD _kombu.binding.reservations", "1 x"), ("SET unacked", "x"), ("SET leasehold:metrics", "x")),
            *(("DEL unacked_index", ""), ("SET celeryev.x", "x"), ("HSET x.reply.celery.pidbox", "a b")),
        )
    ),
    # Only workers may write answers and notices; only their receivers may read them.
    *((role, "LPUSH leasehold:reply:x {}") for role in ROLES[1:]),
    *((role, "BLPOP leasehold:reply:x 0") for role in ("producer", "monitor", "metrics", "queues")),
    *((role, "PUBLISH leasehold:notice:x {}") for role in ROLES[1:]),
    *((role, "SUBSCRIBE leasehold:notice:x") for role in ("producer", "monitor", "metrics", "host")),
    *((role, "PSUBSCRIBE *") for role in ("reader", "console")),
    ("console", "XADD leasehold:view:deltas * x y"),
    ("console", "EVAL return(redis.call('DEL',KEYS[1])) 1 leasehold:view:slots"),
    ("console", "LLEN ticks"),
    # Workers execute the commands of this channel.
    *((role, "PUBLISH /0.celery.pidbox {}") for role in ("producer", "reader", "metrics", "host")),
    *((role, "PSUBSCRIBE /0.celeryev/*") for role in ("producer", "reader", "metrics", "host")),
    *((role, "EVAL return(1) 0") for role in ("producer", "reader", "metrics", "host", "queues")),
    *((role, "HGETALL leasehold:metrics") for role in ("producer", "reader", "monitor", "host", "queues")),
    *((role, "HMGET leasehold:view:slots x") for role in ("producer", "monitor", "host", "queues")),
    *(("queues", words) for words in ("INFO", "TIME", "LLEN unacked", "LLEN leasehold:reply:x", "GET ticks")),
    # Hosts write heartbeats, workers write the hints for hosts.
    *((role, "SET leasehold:heartbeat:lab-1 x") for role in ("producer", "reader", "monitor", "metrics")),
    *((role, "SUBSCRIBE leasehold:host:lab-1") for role in ("producer", "reader", "monitor", "metrics")),
    *((role, "PUBLISH leasehold:host:lab-1 {}") for role in ROLES[1:]),
    *((role, "SET leasehold:heartbeats:since x") for role in ROLES[1:]),
    # Only clients need the time of the last taken message.
    *((role, "SET leasehold:queue:taken 1") for role in ROLES[1:]),
    *((role, "GET leasehold:queue:taken") for role in ("producer", "monitor", "metrics")),
    ("host", "GET leasehold:heartbeat:lab-1"),
]


class StackWithRoles(Stack):
    """A stack whose processes are Redis users with different roles."""

    def start_redis(self) -> RedisServer:
        self.roles = RedisWithRoles(self.folder / "redis")
        return self.roles.server

    def redis_url(self, role: str) -> str:
        return self.roles.url(role)

    def start_as(self, role: str, name: str, *words: str, view: str | None = None) -> None:
        urls = {"LEASEHOLD_BROKER__URL": self.redis_url(role), "LEASEHOLD_VIEW__URL": self.redis_url(view or role)}
        environment = {**self.environment, **urls, "LEASEHOLD_CONSOLE__QUEUES_URL": self.redis_url("queues")}
        environment |= {f"LEASEHOLD_CELERY__{key}_FILE": str(self.file(name)) for key in ("BEAT", "ALIVE")}
        self.processes[name] = Process(name, words, environment, self.folder)

    def _start_workers(self) -> None:
        for queue in QUEUE_NAMES:
            self.start_as(queue, queue, "tasks.worker", queue)
        self.start_as("beat", "beat", "tasks.clock")
        self.start_as("foresight", "foresight", "tasks.foresight")

    def file(self, name: str) -> Path:
        return self.folder / f"alive-{name}"


def find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackWithRoles]:
    ports: dict[str, Any] = {f"{name}__PORT": find_free_port() for name in ("FLOWER", "METRICS", "CONSOLE")}
    lab = {"system": "lab-linux", "provider": "static", "offline_timeout": 60}
    rules = {"pools": {**RULES["pools"], "lab": lab}}
    folder = tmp_path_factory.mktemp("roles")
    write_token(folder / TOKEN_FILE)
    ports["CONSOLE__TOKEN_FILE"] = str(folder / TOKEN_FILE)
    with pytest.MonkeyPatch.context() as patch:
        # Other tests fork the programs from a process that has imported much. Here each starts by its command.
        patch.setattr("testbed.processes.FORKED", frozenset())
        with StackWithRoles(folder, rules, FLOWER__BASIC_AUTH=FLOWER_AUTH, **ports) as running:
            running.start_as("monitor", "flower", "tasks.monitor", view="queues")
            running.start_as("metrics", "metrics", "workers.exporter")
            running.start_as("producer", "console", "leasehold.console", view="console")
            yield running


@pytest.fixture(scope="module")
def roles(stack: StackWithRoles) -> RedisWithRoles:
    return stack.roles


@pytest.fixture
def client(roles: RedisWithRoles) -> Iterator[Client]:
    with Client(roles.url("producer"), view_url=roles.url("reader")) as opened:
        yield opened


def is_well(path: Path) -> bool:
    """Return whether the process of this file answers its canaries, and no worker refuses them."""
    found = read_sign(path)
    return found.refusal == "" and found.seconds is not None and found.age < found.seconds


def fetch(port: int, page: str) -> str | None:
    authorization = base64.b64encode(FLOWER_AUTH.encode()).decode()
    url = f"http://127.0.0.1:{port}/{page}"
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {authorization}"})
    with suppress(OSError), urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - as above
        text: str = answer.read().decode()
        return text
    return None


def fetch_console(stack: StackWithRoles, page: str) -> str | None:
    url = f"http://127.0.0.1:{stack.settings.console.port}/{page}"
    token = read_token(stack.folder / TOKEN_FILE)
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with suppress(OSError), urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - as above
        text: str = answer.read().decode()
        return text
    return None


def fetch_json(port: int, page: str) -> Any:
    text = fetch(port, page)
    return None if text is None else json.loads(text)


def test_every_role_has_the_rights_for_its_work(stack: StackWithRoles, client: Client) -> None:
    with client.lease(pool="warm", wait=40) as lease:
        assert lease.slot == "warm-1"
        assert [row.id for row in client.list("leased")] == [lease.id]
    assert client.wait(lease.id, "ended", 40).phase == "released"
    assert client.report()["term"] >= 1
    assert [row.id for row in client.list("ended")] == [lease.id]
    assert {slot.pool for slot in client.slots()} == {"linux", "warm"}
    assert client.accounts() == ()

    flower, metrics = stack.settings.flower.port, stack.settings.metrics.port
    page = wait_for(lambda: fetch(metrics, "metrics"), "the metrics")
    assert 'leasehold_up{part="redis"} 1.0' in page
    assert 'leasehold_ticks_total{result="success"}' in page
    wait_for(lambda: len(fetch_json(flower, "api/workers?refresh=1") or {}) == 5, "Flower to list all workers")
    wait_for(lambda: fetch_json(flower, "api/tasks"), "Flower to list tasks")
    assert {each["name"] for each in fetch_json(flower, "api/queues/length")["active_queues"]} >= {"ticks"}
    wait_for(lambda: "local token" in (fetch_console(stack, "about") or ""), "the console")
    assert "ticks" in (fetch_console(stack, "queues") or "")
    for name in ("beat", "foresight", *QUEUE_NAMES):
        wait_for(partial(is_well, stack.file(name)), f"the sign of life of {name}")

    assert stack.roles.read_refusals() == []


def test_no_password_is_in_a_workers_configuration_or_on_a_page_of_flower(stack: StackWithRoles) -> None:
    shown: dict[str, str] = {}
    found: dict[str, Any] = {}
    for timeout in (5, 20):
        # An inspection ends after its time limit, even if a busy worker has not answered.
        found = stack.app.control.inspect(timeout=timeout).conf(with_defaults=True) or {}
        if len(found) == len(QUEUE_NAMES):
            break
    assert len(found) == len(QUEUE_NAMES)
    shown |= {worker: json.dumps(conf) for worker, conf in found.items()}
    port = stack.settings.flower.port
    wait_for(lambda: len(fetch_json(port, "api/workers?refresh=1") or {}) == len(QUEUE_NAMES), "the workers' pages")
    pages = ("workers", "broker", "tasks", "api/workers", "metrics", *(f"worker/{worker}" for worker in found))
    shown |= {page: fetch(port, page) or "" for page in pages}
    command = [sys.executable, "-m", "celery", "-A", "tasks.app", "report"]
    done = subprocess.run(command, env=stack.environment, capture_output=True, text=True, timeout=60, check=True)
    shown["report"] = done.stdout + done.stderr
    assert all(shown.values())
    assert "broker_read_url" in shown["report"]
    assert [
        name for name, text in shown.items() if re.search(r"(leasehold|monitor|metrics|flower)-password", text)
    ] == []


def test_flower_serves_no_page_but_its_health_without_the_password(stack: StackWithRoles) -> None:
    port = stack.settings.flower.port
    wait_for(lambda: fetch(port, "metrics"), "the metrics of Flower")
    for page in ("metrics", "", "workers", "tasks", "broker", "api/workers", "api/queues/length"):
        with pytest.raises(HTTPError, match="401"), urlopen(f"http://127.0.0.1:{port}/{page}", timeout=10):
            pass
    with urlopen(f"http://127.0.0.1:{port}/healthcheck", timeout=10) as answer:
        assert answer.read() == b"OK"


def test_the_doctor_as_the_workers_user_finds_no_fault_and_needs_no_further_right(
    stack: StackWithRoles, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in stack.environment.items():
        if name.startswith("LEASEHOLD_"):
            monkeypatch.setenv(name, value)
    found = run("doctor", "--no-aws", "--json", "--timeout", "15")
    findings = json.loads(found.out)["findings"]
    assert [each for each in findings if each["outcome"] != "ok"] == [
        {
            "check": "aws",
            "outcome": "skipped",
            "text": "the permissions in AWS are not checked: no ability was requested",
            "remedy": "",
        }
    ]
    assert (found.status, stack.roles.read_refusals()) == (0, [])


def test_a_user_of_one_host_writes_the_heartbeats_of_this_host_only(roles: RedisWithRoles) -> None:
    """docs/how-to/set-up-redis.md, "Users of Redis", has the two replacements."""
    replaced = {
        "~leasehold:heartbeat:*": ["~leasehold:heartbeat:lab-7", "~leasehold:heartbeat:lab-7:*"],
        "&leasehold:host:*": ["&leasehold:host:lab-7"],
    }
    words = [each for word in read_rules()["host"] for each in replaced.get(word, [word])]
    with roles.examine() as examiner, Client(roles.url("producer"), view_url=roles.url("host-lab-7")) as client:
        examiner.execute_command("ACL", "SETUSER", "host-lab-7", *words, ">host-lab-7-password")
        client.hosts.heartbeat("lab-7", "m7", None, "a-1")
        assert examiner.delete("leasehold:heartbeat:lab-7", "leasehold:heartbeat:lab-7:a-1") == 2
        for slot in ("lab-70", "lab-1"):
            with pytest.raises(Unavailable, match="host-lab-7 may not"):
                client.hosts.heartbeat(slot, "m7")
        examiner.execute_command("ACL", "DELUSER", "host-lab-7")
    roles.read_refusals()


def test_a_host_has_the_rights_for_its_work(stack: StackWithRoles, roles: RedisWithRoles) -> None:
    """Its requests are sent as a producer; heartbeats and hints use its own role."""
    with Client(roles.url("producer"), view_url=roles.url("host")) as client:
        hosts = client.hosts
        assert hosts.register("lab-1", pool="lab", machine="m1", run="a-1").state == "ready"
        registered = stack.slots("lab")[0].last_seen or 0
        hints = hosts.hints("lab-1")
        hints.listen()

        def beat_and_look() -> bool:
            hosts.heartbeat("lab-1", "m1", None, "a-1")
            return (stack.slots("lab")[0].last_seen or 0) > registered

        wait_for(beat_and_look, "a heartbeat to be recorded")
        stack.ask("cordon", {"slot": "lab-1"})
        wait_for(lambda: hints.wait(1), "a push")
        hints.close()
        assert hosts.leases("lab-1", "m1").cordoned
        assert hosts.leave("lab-1", "m1").state == "draining"
    # The host reads the offset of cluster time once, and is refused: Redis 6.2 has no rights to only read a key.
    assert set(stack.roles.read_refusals()) <= {("host", "command", "get")}


@pytest.mark.parametrize(("role", "words"), FOREIGN, ids=" ".join)
def test_a_command_outside_a_roles_work_is_refused(role: str, words: str, roles: RedisWithRoles) -> None:
    # A refusal within a script is an error of another class than that of a command.
    refusal = pytest.raises(redis.exceptions.ResponseError, match=r"(?i)permission")
    with make_redis(roles.url(role)) as connection, refusal:
        connection.execute_command(*words.split())
    roles.read_refusals()


def test_a_login_needs_a_name_and_a_password(roles: RedisWithRoles) -> None:
    for user in ("", "leasehold:wrong@", "default:x@"):
        with (
            make_redis(f"redis://{user}127.0.0.1:{roles.server.port}/0") as connection,
            pytest.raises(redis.exceptions.AuthenticationError),
        ):
            connection.ping()


def test_a_restart_restores_writes_of_transactions_too(tmp_path: Path) -> None:
    """Redis replays its append-only file as the default user, and checks this user's rights in transactions."""
    roles = RedisWithRoles(tmp_path / "redis")
    try:
        with make_redis(roles.url("leasehold")) as connection, connection.pipeline(transaction=True) as transaction:
            transaction.lpush("launch", "message")
            transaction.hset("unacked", "tag", "message")
            transaction.execute()
        roles.server.stop()
        roles.server.restart()
        with roles.examine() as connection:
            assert connection.lrange("launch", 0, -1) == [b"message"]
            assert connection.hgetall("unacked") == {b"tag": b"message"}
    finally:
        roles.server.stop()


def test_a_missing_right_of_a_client_is_reported_in_one_line(roles: RedisWithRoles) -> None:
    with (
        Client(roles.url("reader"), timeout=0.1) as client,
        pytest.raises(Unavailable, match="no permissions") as found,
    ):
        client.reserve(pool="warm")
    assert "password" not in str(found.value)
    roles.read_refusals()


@pytest.mark.parametrize(
    ("role", "words", "line"),
    [
        ("monitor", ["status"], "user monitor may not read the lengths of the queues; Redis at {server} answers: "),
        ("metrics", ["status"], "user metrics may not read the leader lock; Redis at {server} answers: "),
        ("monitor", ["list"], "user monitor may not read the view; Redis at {server} answers: "),
        ("metrics", ["alive", "ticks"], "user metrics may not send to the queue ticks; Redis at {server} answers: "),
        (
            "metrics",
            ["release", "x"],
            "user metrics may not send to the queue reservations; Redis at {server} answers: ",
        ),
        ("stranger", ["list"], "user stranger may not use Redis at {server}: invalid username-password pair"),
        (None, ["list"], "user default may not use Redis at {server}: Authentication required."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value)[:12],
)
def test_a_command_names_the_user_that_redis_refuses_and_what_it_may_not_do(
    role: str | None, words: list[str], line: str, roles: RedisWithRoles, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = f"redis://127.0.0.1:{roles.server.port}/0"
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", server if role is None else roles.url(role))
    found = run(*words, *(["--timeout", "0.5"] if words[0] in {"alive", "release"} else []))
    (printed,) = found.err.splitlines()
    assert printed.startswith(f"leasehold: {line.format(server=server)}")
    assert found.status != 0
    roles.read_refusals()


def test_every_role_of_the_file_is_tried() -> None:
    assert read_rules().keys() == {"default", *ROLES, *QUEUE_NAMES, "beat", "foresight"}
    assert read_rules()["default"] == ["off", "resetpass", "~*", "&*", "+@all"]


@pytest.mark.parametrize("queue", [*QUEUE_NAMES, "foresight"])
def test_each_worker_is_a_user_of_its_own_with_the_rights_of_all(queue: str) -> None:
    """Kombu's records of messages that are not acknowledged belong to all workers together: each may return those of
    every queue.
    """
    assert read_rules()[queue] == read_rules()["leasehold"]


@pytest.mark.parametrize("role", [*ROLES, "beat"])
def test_a_role_gets_each_right_by_name_and_in_the_syntax_of_redis_6_2(role: str) -> None:
    words = read_rules()[role]
    # In 6.2 a new user has all channels, after which "&" is an error; in 7 it has none.
    assert words[:2] == ["on", "resetchannels"]
    assert [
        word for word in words if word.startswith(("%", "(", "allkeys", "allcommands", "allchannels", "nopass"))
    ] == []
    assert [word for word in words if word.startswith("+@")] == ["+@connection", "+@transaction"]
    assert words.index("-@all") < words.index("+@connection") < words.index("-@dangerous")
    assert {word for word in words if "|" in word} <= {"+script|load", "+script|exists"}


def test_workers_have_the_rights_of_our_scripts() -> None:
    scripts = [*ROOT.glob("scheduler/**/*.lua"), *ROOT.glob("workers/**/*.lua")]
    called = {name.lower() for script in scripts for name in re.findall(r"redis\.call\('(\w+)'", script.read_text())}
    assert len(called) > 10
    assert {f"+{name}" for name in called} - set(read_rules()["leasehold"]) == set()
