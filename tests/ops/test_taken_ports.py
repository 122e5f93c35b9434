"""A process whose port is in use ends with one line that names the setting and its variable."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from workers.environment import find_taken_port

MODULES = {"flower": "tasks.monitor", "console": "leasehold.console", "metrics": "workers.exporter"}


@pytest.mark.parametrize("process", MODULES)
def test_a_port_in_use_is_reported_with_the_variable_that_changes_it(process: str, tmp_path: Path) -> None:
    (tmp_path / "leasehold.toml").touch()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
    variable = f"LEASEHOLD_{process.upper()}__PORT"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        given = {
            "LEASEHOLD_CONFIG": str(tmp_path / "leasehold.toml"),
            "LEASEHOLD_DATABASE__URL": f"sqlite:///{tmp_path}/leasehold.db",
            "LEASEHOLD_BROKER__URL": "redis://127.0.0.1:1/0",
            "LEASEHOLD_FLOWER__BASIC_AUTH": "user:password",
            variable: str(port),
        }
        done = subprocess.run(
            [sys.executable, "-m", MODULES[process]],
            env={**kept, **given},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    line = (
        f"leasehold: {process}.port: expected a free port ({variable}), got {port} on 127.0.0.1: Address already in use"
    )
    assert (done.returncode, done.stderr.splitlines()) == (1, [line])


def test_a_free_port_has_no_fault() -> None:
    assert find_taken_port("flower.port", "127.0.0.1", 0) is None
    assert find_taken_port("flower.port", "::1", 0) is None
