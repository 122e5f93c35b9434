"""The configuration that a stack chooses before its start agrees with the processes that then run."""

import json
import os
import socket
import subprocess
import urllib.request
from pathlib import Path
from typing import Self

import pytest

from leasehold.stack.configuration import EMULATOR, configure, find_free_port
from leasehold.stack.preparation import QuietDispatcher
from scheduler.protocol.names import OWN_STACK_VARIABLE
from scheduler.store.migrating import migrate
from workers.services import Services
from workers.setting_types import reveal


def test_the_configured_queue_is_the_one_that_the_emulator_makes(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    plan = configure(tmp_path, tmp_path)
    [program] = [each for each in plan.programs if each.name == EMULATOR]
    # The emulator needs none of the user's profiles.
    environment = {**os.environ, "AWS_EC2_METADATA_DISABLED": "true", "AWS_PROFILE": "no-such-profile"}
    with subprocess.Popen(program.command, env=environment, stdout=subprocess.PIPE, text=True) as emulator:
        assert emulator.stdout is not None
        assert emulator.stdout.readline().startswith("leasehold: EC2 emulator at ")
        with urllib.request.urlopen(f"{plan.emulator_url}/_leasehold/health", timeout=10) as answer:  # noqa: S310
            health = json.load(answer)
        emulator.terminate()
    assert plan.environment["LEASEHOLD_AWS__INTERRUPTION_QUEUE"] == health["interruption_queue"]


@pytest.mark.parametrize("name", ["job_feature%2Flogin@2", "#1", "why?", "a b", "Übung", "50%"])
def test_a_stack_keeps_its_database_in_a_folder_with_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    plan = configure(folder, folder)
    assert reveal(plan.settings.database.url) == plan.database_url
    migrate(plan.database_url)
    assert (folder / "leasehold.db").stat().st_size > 0


@pytest.mark.parametrize(("configured", "reported"), [(None, "FOLDER/beat"), ("/run/beat", None)])
def test_beat_has_a_file_to_touch_unless_one_is_configured(
    configured: str | None, reported: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`leasehold alive beat` reads its age."""
    if configured:
        monkeypatch.setenv("LEASEHOLD_CELERY__BEAT_FILE", configured)
    plan = configure(tmp_path, tmp_path)
    assert plan.environment.get("LEASEHOLD_CELERY__BEAT_FILE") == (
        reported and reported.replace("FOLDER", str(tmp_path))
    )


def test_two_stacks_that_start_at_the_same_time_choose_different_ports(tmp_path: Path) -> None:
    """Neither listens yet, so the ports are free for both."""
    chosen = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        environment = configure(folder, folder).environment
        chosen += [environment[f"LEASEHOLD_{part}__PORT"] for part in ("FLOWER", "METRICS", "CONSOLE")]
    assert len(set(chosen)) == len(chosen)


def test_a_port_that_is_in_use_is_replaced_and_the_line_names_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setenv("LEASEHOLD_FLOWER__PORT", str(port))
        for name in ("METRICS", "CONSOLE"):
            monkeypatch.setenv(f"LEASEHOLD_{name}__PORT", str(find_free_port()))
        plan = configure(tmp_path, tmp_path)
    taken = plan.environment["LEASEHOLD_FLOWER__PORT"]
    line = f"flower.port {port} is in use, so flower listens on {taken}; LEASEHOLD_FLOWER__PORT sets another"
    assert [each for each in plan.moved_ports if each.startswith("flower")] == [line]


def test_the_process_of_the_stack_reads_the_market_from_its_emulator(tmp_path: Path) -> None:
    """It needs instance types before it applies rules with requirements."""
    plan = configure(tmp_path, tmp_path)
    aws, environment = plan.settings.aws, plan.environment
    assert (aws.endpoint_url, aws.region) == (plan.emulator_url, environment["LEASEHOLD_AWS__REGION"])
    assert aws.secret_access_key is not None
    assert reveal(aws.secret_access_key) == environment["LEASEHOLD_AWS__SECRET_ACCESS_KEY"]


def test_a_process_finds_no_free_port_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that is to listen on the first one may not have started yet."""
    offered = iter([4001, 4001, 4002])

    class Listener:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def setsockopt(self, *_: object) -> None: ...

        def bind(self, _: object) -> None: ...

        def getsockname(self) -> tuple[str, int]:
            return "127.0.0.1", next(offered)

    monkeypatch.setattr("leasehold.stack.configuration.socket.socket", Listener)
    monkeypatch.setattr("leasehold.stack.configuration._FOUND", set())
    assert (find_free_port(), find_free_port()) == (4001, 4002)


@pytest.mark.parametrize(("broker", "is_own"), [(None, True), ("redis://:secret@127.0.0.1:1/0", False)])
def test_only_a_stack_with_a_redis_of_its_own_accepts_unsigned_commands(
    broker: str | None, is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers know it by their environment, which neither a file nor a message sets."""
    monkeypatch.setenv(OWN_STACK_VARIABLE, "0" if is_own else "1")
    if broker is not None:
        monkeypatch.setenv("LEASEHOLD_BROKER__URL", broker)
    plan = configure(tmp_path, tmp_path)
    assert plan.environment[OWN_STACK_VARIABLE] == ("1" if is_own else "0")
    monkeypatch.setenv(OWN_STACK_VARIABLE, plan.environment[OWN_STACK_VARIABLE])
    migrate(plan.database_url)
    assert Services(plan.settings, QuietDispatcher).ports.is_own_stack is is_own
