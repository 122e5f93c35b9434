"""Status and output of the command `python -m tests.chaos.run`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guarding import Guarded
from tests.system.processes import wait_for
from tests.system.stack import ROOT
from workers.embedded_redis import NO_SERVER, find_redis_server


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_reports_that_in_a_line_and_sums_up(number: signal.Signals, tmp_path: Path) -> None:
    if find_redis_server() is None:
        pytest.skip(NO_SERVER)
    command = [sys.executable, "-m", "tests.chaos.run", "--database=sqlite", "--first=7"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with Guarded(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_for(lambda: list(tmp_path.glob("chaos-7-*/redis/redis.log")), "the stack to start")
        process.send_signal(number)
        out, err = process.communicate()
    assert process.returncode == 130
    assert err.decode().splitlines() == ["interrupted in seed 7"]
    assert out.decode().startswith("0 seeds, 0 reservations")
    assert list(tmp_path.iterdir()) == []
