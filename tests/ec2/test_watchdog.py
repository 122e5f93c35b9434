"""The shipped boot script: a machine that nobody hears from powers itself off. Run under /bin/sh as it is."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ec2.conftest import an_order, some_rules
from tests.system.processes import wait_for
from workers.ec2.user_data import example_template, render_user_data, variables_of

Boot = Callable[..., "Machine"]


class Machine:
    """What the script was run on: its folder /run/leasehold, and a `shutdown` that only says that it was called."""

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
            env={"PATH": f"{programs}:/usr/bin:/bin", "LEASEHOLD_RUN": str(self.run)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.said = self.process.communicate(timeout=30)[0]

    @property
    def is_off(self) -> bool:
        return self.calls.exists()

    @property
    def is_watched(self) -> bool:
        """Whether anything of the script still runs."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def touch_until_seen(self) -> None:
        """Say that it is alive, and wait until the watchdog has taken note."""
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


def test_a_machine_that_is_never_heard_of_ends_itself_when_its_time_to_boot_is_over(boot: Boot) -> None:
    machine = boot(boot_timeout=0.6, binding_timeout=0.4, self_end_after=10)
    assert machine.said == "leasehold: slot linux-1 of cluster blue has booted\n"
    wait_for(lambda: machine.is_off, "the end of the machine", 60)
    assert machine.calls.read_text(encoding="utf-8") == "shutdown -h now\n"


def test_it_runs_while_it_is_touched_and_ends_itself_after_the_silence(boot: Boot) -> None:
    """Seen four times, a second apart: twice as long as it would last without."""
    machine = boot(boot_timeout=2, binding_timeout=0, self_end_after=2)
    for _ in range(4):
        machine.touch_until_seen()
    assert not machine.is_off
    wait_for(lambda: machine.is_off, "the end of the machine", 60)
    wait_for(lambda: not machine.is_watched, "the end of the watchdog")


def test_at_0_nobody_watches(boot: Boot) -> None:
    machine = boot(boot_timeout=1, self_end_after=0)
    assert not machine.is_watched
    assert not machine.is_off
    assert "slot=linux-1" in (machine.run / "machine").read_text(encoding="utf-8")
