"""The shipped boot script, run under /bin/sh: a silent machine powers itself off."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.processes import wait_for
from tests.ec2.conftest import an_order, some_rules
from workers.ec2.user_data import example_template, render_user_data, variables_of

Boot = Callable[..., "Machine"]


class Machine:
    """The folder /run/leasehold of a run of the script, with a `shutdown` that only records its call."""

    def __init__(self, folder: Path, script: str) -> None:
        self.run, self.calls = folder / "run", folder / "calls"
        programs = folder / "bin"
        programs.mkdir()
        fake = programs / "shutdown"
        fake.write_text(f'#!/bin/sh\necho "shutdown $*" >> "{self.calls}"\n', encoding="utf-8")
        fake.chmod(0o755)
        (folder / "script").write_text(script, encoding="utf-8")
        self.process = subprocess.Popen(
            ["/bin/sh", str(folder / "script")],
            env={
                "PATH": f"{programs}:/usr/bin:/bin",
                "LEASEHOLD_RUN": str(self.run),
                "LEASEHOLD_PER_BOOT": str(folder / "per-boot"),
            },
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.stated = self.process.communicate(timeout=30)[0]

    @property
    def is_off(self) -> bool:
        return self.calls.exists()

    @property
    def is_watched(self) -> bool:
        """Whether a process of the script still runs."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def touch_until_seen(self) -> None:
        """Touch the file, and wait until the watchdog has removed it."""
        alive = self.run / "alive"
        alive.touch()
        wait_for(lambda: not alive.exists(), "the watchdog to look")

    def clear(self) -> None:
        if self.is_watched:
            os.killpg(self.process.pid, signal.SIGKILL)


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Boot]:
    machines = []

    def run(**keys: Any) -> Machine:
        pool = some_rules(**keys).pools["linux"]
        values = variables_of(an_order(), pool, "blue", "us-east-1")
        machines.append(Machine(tmp_path, render_user_data(example_template(), values)))
        return machines[-1]

    yield run
    for machine in machines:
        machine.clear()


def test_a_machine_that_is_always_silent_ends_itself_after_its_boot_time(boot: Boot) -> None:
    machine = boot(boot_timeout=0.6, binding_timeout=0.4, self_end_after=10)
    assert machine.stated == "leasehold: a machine of pool linux of cluster blue has booted\n"
    wait_for(lambda: machine.is_off, "the end of the machine", 60)
    assert machine.calls.read_text(encoding="utf-8") == "shutdown -h now\n"


def test_a_machine_runs_while_the_file_is_touched_and_ends_itself_after_the_silence(boot: Boot) -> None:
    """It is touched four times at intervals of a second: twice as long as the watchdog would wait."""
    machine = boot(boot_timeout=2, binding_timeout=0, self_end_after=2)
    for _ in range(4):
        machine.touch_until_seen()
    assert not machine.is_off
    wait_for(lambda: machine.is_off, "the end of the machine", 60)
    wait_for(lambda: not machine.is_watched, "the end of the watchdog")


def test_at_0_there_is_no_watchdog(boot: Boot) -> None:
    machine = boot(boot_timeout=1, self_end_after=0)
    assert not machine.is_watched
    assert not machine.is_off
    assert "pool=linux" in (machine.run / "machine").read_text(encoding="utf-8")


def test_the_script_runs_at_each_further_boot_too(boot: Boot, tmp_path: Path) -> None:
    """cloud-init runs user data once, and each script in the folder `per-boot` at every boot."""
    (tmp_path / "per-boot").mkdir()
    boot(boot_timeout=1, self_end_after=0)
    script = tmp_path / "per-boot" / "leasehold"
    assert script.read_text(encoding="utf-8") == (tmp_path / "script").read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)
    again = subprocess.run(
        [str(script)],
        env={
            "PATH": "/usr/bin:/bin",
            "LEASEHOLD_RUN": str(tmp_path / "run"),
            "LEASEHOLD_PER_BOOT": str(tmp_path / "per-boot"),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout == "leasehold: a machine of pool linux of cluster blue has booted\n"
    assert again.stderr == ""
