"""Starts Python programs of tests as forks of one process that has imported what they need, on Linux.

By its command each program of a stack imports for one to two seconds of processor time, and a run of the tests starts
hundreds of them. The product's own stack forks its programs, too (leasehold/stack/nursery.py, which this uses). Its
nursery has one environment and ends with its stack; here a process of pytest has one nursery for all its stacks.
"""

import atexit
import contextlib
import importlib
import json
import os
import runpy
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from leasehold.stack import nursery
from testbed.clocks.shift import HOOK, VARIABLE
from testbed.guarding import note_end, note_start, raise_dropped_interrupt, take_signals_as_interrupts

FORKED: Final = frozenset(
    {
        *("tasks.worker", "tasks.clock", "tasks.foresight", "tasks.monitor"),
        *("workers.exporter", "leasehold.console", "leasehold_emulator"),
    }
)
"""The programs whose imports the nursery has."""
_IMPORTED: Final = (
    *(name for names in nursery.PROGRAMS.values() for name in names),
    *("workers.configuration", "workers.ec2.fleet", "workers.ec2.images", "workers.ec2.interruptions"),
    *("workers.ec2.market", "workers.services", "leasehold_emulator.server"),
)
_NEEDS_SETTINGS: Final = "tasks."
"""These modules read the settings when they are imported, so each process imports them in its own environment."""
_READ_AT_IMPORT: Final = "REMAP_SIGTERM"
"""Celery reads this variable when it is imported, so a process that has it is started by its command."""
_MODULE: Final = "testbed.nursery"
_ROOT: Final = Path(__file__).parents[1]
_UMASK: Final = 0o022
_ONE_AT_A_TIME: Final = threading.Lock()


class Forked:
    """A process that was forked, in a session of its own; it ends with this one, as testbed.guarding.Guarded does."""

    def __init__(self, child: nursery.Forked) -> None:
        self._child, self._is_cleared = child, False
        note_start(self)
        child.begin()

    @property
    def pid(self) -> int:
        return self._child.pid

    def poll(self) -> int | None:
        """Return the exit status; None while the process runs."""
        status = self._child.poll()
        return None if status is None else self.wait()

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and end the rest of its group. Raises subprocess.TimeoutExpired."""
        status = self._child.wait(timeout)
        assert status is not None
        if not self._is_cleared:
            self._is_cleared = True
            note_end(self)
            self._child.release()
        return status

    def terminate(self) -> None:
        """Send SIGTERM."""
        if self.poll() is None:
            self._child.send_signal(signal.SIGTERM)


def fork(arguments: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> Forked | None:
    """Start `python -m ARGUMENTS` by a fork; None if the nursery cannot."""
    if _READ_AT_IMPORT in environment:
        return None
    take_signals_as_interrupts()
    raise_dropped_interrupt()
    order = {"arguments": list(arguments), "environment": dict(environment), "folder": str(folder)}
    with _ONE_AT_A_TIME:
        child = _find_nursery().fork((sys.executable, "-m", _MODULE, json.dumps(order)), {}, log)
    return Forked(child) if child else None


@cache
def _find_nursery() -> nursery.Nursery:
    """Return the nursery of this process."""
    found = nursery.Nursery({}, _ROOT, Path(os.devnull), module=_MODULE, programs={_MODULE})
    atexit.register(found.close)
    return found


def _import_all() -> None:
    for name in _IMPORTED:
        if not name.startswith(_NEEDS_SETTINGS):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(name)


def _run(order: Mapping[str, object]) -> None:
    """Become the ordered program, in its environment and folder."""
    arguments, environment = order["arguments"], order["environment"]
    assert isinstance(arguments, list)
    assert isinstance(environment, dict)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder := str(order["folder"]))
    os.umask(_UMASK)
    nursery.show_command((sys.executable, "-m", *arguments))
    if VARIABLE in environment:
        runpy.run_path(str(HOOK / "sitecustomize.py"))
    sys.path[:1] = [folder, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [arguments[0], *arguments[1:]]
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        nursery.serve(int(sys.argv[1]), _import_all)
    else:
        _run(json.loads(sys.argv[1]))
