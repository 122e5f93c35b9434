"""The owner of a local stack runs hosts without making a principal for each."""

from pathlib import Path

import pytest

from leasehold.agent.commands import find_own_key
from leasehold.client.discovery import URL_VARIABLE, RunningStack
from scheduler.operations.principals import add_principal
from scheduler.protocol.names import OWN_STACK_VARIABLE
from scheduler.protocol.signing import format_key_line
from scheduler.store.opening import open_store


@pytest.fixture(autouse=True)
def stack(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunningStack:
    found = RunningStack(tmp_path, 1, "running", "redis://x", sqlite_url, environment={OWN_STACK_VARIABLE: "1"})
    monkeypatch.setattr("leasehold.agent.commands.find_running", lambda: found)
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    return found


def test_a_host_gets_a_principal_once_and_keeps_its_key(sqlite_url: str) -> None:
    key = find_own_key("lab-1")
    assert key is not None
    assert find_own_key("lab-1") == key
    store = open_store(sqlite_url)
    rows = {row.name: row for row in store.find_principals()}
    assert (rows["lab-1"].role, key) == (
        "host",
        format_key_line("lab-1", rows["lab-1"].key, store.read_cluster().identity),
    )
    store.close()


def test_a_principal_of_another_role_is_no_host(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    add_principal(store, {"name": "shop", "role": "producer"})
    store.close()
    assert find_own_key("shop") is None


def test_a_stack_on_another_redis_gives_no_key(stack: RunningStack, monkeypatch: pytest.MonkeyPatch) -> None:
    stack.environment[OWN_STACK_VARIABLE] = "0"
    assert find_own_key("lab-1") is None
    stack.environment[OWN_STACK_VARIABLE] = "1"
    monkeypatch.setenv(URL_VARIABLE, "redis://127.0.0.1:1/0")
    assert find_own_key("lab-1") is None
