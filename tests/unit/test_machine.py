"""The identity and resources that a machine reports."""

import os
from pathlib import Path

import pytest

from leasehold.agent.machine import find_machine_id, find_resources, find_slot_name, find_state_folder


def test_the_id_is_the_machines_own_and_shows_only_a_digest(tmp_path: Path) -> None:
    source = tmp_path / "machine-id"
    source.write_text("b08dfa6083e7567a1921a715000001fb\n")
    found = find_machine_id(tmp_path / "state", source)
    assert found == find_machine_id(tmp_path / "other", source)
    assert len(found) == 32
    assert "b08dfa60" not in found
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_without_a_machine_id_a_random_one_is_made_once_and_kept(content: str | None, tmp_path: Path) -> None:
    source = tmp_path / "machine-id"
    if content is not None:
        source.write_text(content)
    found = find_machine_id(tmp_path / "state", source)
    assert found == find_machine_id(tmp_path / "state", source)
    assert found != find_machine_id(tmp_path / "other", source)
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["machine-id"]


def test_an_emptied_id_file_gets_a_new_id(tmp_path: Path) -> None:
    (tmp_path / "machine-id").touch()
    found = find_machine_id(tmp_path, tmp_path / "none")
    assert found
    assert found == find_machine_id(tmp_path, tmp_path / "none")


def test_the_id_file_is_in_the_users_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert find_state_folder() == tmp_path / "leasehold"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert find_state_folder() == Path.home() / ".local" / "state" / "leasehold"


def test_the_resources_are_those_that_the_process_may_use() -> None:
    found = find_resources()
    assert found["cpus"] == len(os.sched_getaffinity(0))
    assert 64 < found["memory_mib"] < 2**30
    assert find_slot_name()
