"""Attempts of another user of the host on a running stack. Each function returns the attempts that succeeded."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from leasehold.client.discovery import RunningStack
from tests.strangers import run_as_stranger

_READ: Final = """
found = []
for path in words[0]:
    for act in (os.listdir, lambda path: open(path, "rb").read(1), lambda path: open(path, "ab").close()):
        try:
            act(path)
            found.append(path)
        except OSError:
            pass
print(json.dumps(found))
"""
_REDIS: Final = """
host, port, folder = words
found = []
for login in ({}, {"password": "x"}, {"username": "default", "password": "default"}):
    with redis.Redis(host, port, **once, **login) as connection:
        for command in ("PING", f"CONFIG SET dir {folder}", "CONFIG SET dbfilename planted", "SAVE", "KEYS *"):
            try:
                connection.execute_command(*command.split())
                found.append(command)
            except redis.RedisError:
                pass
print(json.dumps(found))
"""
_PAGES: Final = """
found = []
for method, url, body, headers in words[0]:
    request = urllib.request.Request(url, None if body is None else body.encode(), headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            found.append([method, url, answer.status, answer.read().decode()])
    except urllib.error.URLError:
        pass
print(json.dumps(found))
"""
_COMMANDS: Final = """
found = []
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    for name in ("cmdline", "environ"):
        try:
            text = (folder / name).read_bytes().decode(errors="replace")
        except OSError:
            continue
        found += [text for secret in words[0] if secret in text]
print(json.dumps(found))
"""


def read_files(paths: Iterable[Path]) -> list[str]:
    """Return the files and folders that another user can read or write."""
    found: list[str] = run_as_stranger(_READ, [str(path) for path in paths])
    return found


def use_redis(port: int, folder: Path) -> list[str]:
    """Return the commands that Redis executes for another user."""
    found: list[str] = run_as_stranger(_REDIS, "127.0.0.1", port, str(folder))
    return found


def steer_emulator(url: str) -> list[str]:
    """Return the requests that the EC2 emulator serves to another user."""
    signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=emulator/20261122/us-east-1/ec2/aws4_request, Signature=0"}
    basic = {"Authorization": "Basic ZW11bGF0b3I6ZW11bGF0b3I="}
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    describe = "Action=DescribeInstances&Version=2016-11-15"
    requests: list[tuple[str, str, str | None, dict[str, str]]] = [
        ("GET", "/_leasehold/state", None, {}),
        ("GET", "/_leasehold/calls", None, basic),
        ("PUT", "/_leasehold/settings", '{"boot_seconds": 0}', {}),
        ("POST", "/_leasehold/faults", '{"code": "InternalError"}', basic),
        ("POST", "/_leasehold/reset", "{}", {}),
        ("POST", "/moto-api/reset", "", {}),
        ("GET", "/moto-api/data.json", None, {}),
        ("POST", "/", describe, {**form, **signed}),
        ("POST", "/", describe, form),
    ]
    return [f"{method} {path}" for method, path, _, _ in _fetch(url, requests)]


def read_pages(urls: Iterable[str]) -> str:
    """Return what another user sees of these pages."""
    return "\n".join(text for _, _, _, text in _fetch("", [("GET", url, None, {}) for url in urls]))


def find_in_processes(secrets: Iterable[str]) -> list[str]:
    """Return the command lines and environments that another user can read and that contain one of these secrets."""
    found: list[str] = run_as_stranger(_COMMANDS, list(secrets))
    return found


def _fetch(base: str, requests: Iterable[tuple[str, str, str | None, dict[str, str]]]) -> list[list[Any]]:
    asked = [(method, f"{base}{path}", body, headers) for method, path, body, headers in requests]
    found: list[list[Any]] = run_as_stranger(_PAGES, asked)
    return found


def list_secrets(running: RunningStack) -> list[str]:
    password = running.broker_url.rpartition("@")[0].rpartition(":")[2]
    return [each for each in (password, running.environment["LEASEHOLD_AWS__SECRET_ACCESS_KEY"]) if each]
