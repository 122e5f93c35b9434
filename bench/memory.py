"""The memory of an idle embedded stack, and the seconds until it is ready.

`leasehold up` with its defaults starts in a new folder. A minute after it is ready, the PSS (proportional set size: the
process's own memory, and its share of the memory that processes share) of all its processes is added up. `--python`
measures another installation in turns with this one. Linux only.
"""

import argparse
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import NamedTuple

from bench.processes import list_family, read_cpu

READY_SECONDS = 90.0


class Idle(NamedTuple):
    """What one stack took: seconds until it was ready, CPU seconds until then, and MiB of each process."""

    ready: float
    cpu: float
    processes: list[tuple[str, float]]

    @property
    def total(self) -> float:
        """MiB of all processes."""
        return sum(mib for _, mib in self.processes)


def read_pss(pid: int) -> float:
    """Return the MiB of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def is_running(folder: Path) -> bool:
    """Return whether the stack in this folder is ready."""
    with suppress(OSError, ValueError):
        return bool(json.loads((folder / ".leasehold" / "run.json").read_text(encoding="utf-8"))["phase"] == "running")
    return False


def measure(python: str, seconds: float) -> Idle:
    """Start a stack, wait until it is ready, let it idle for `seconds`, and end it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LEASEHOLD_", "PYTHON"))}
    with TemporaryDirectory(prefix="leasehold-bench-") as name:
        folder, began = Path(name), monotonic()
        with (folder / "log").open("wb") as log:
            command = [python, "-m", "leasehold.cli", "up"]
            up = subprocess.Popen(command, cwd=folder, env=kept, stdout=log, stderr=log)
        try:
            while not is_running(folder):
                assert up.poll() is None, (folder / "log").read_text()
                assert monotonic() - began < READY_SECONDS, "the stack is not ready in time"
                sleep(0.01)
            ready = monotonic() - began
            cpu = sum(map(read_cpu, list_family(up.pid)))
            sleep(seconds)
            return Idle(ready, cpu, [(_name(pid), read_pss(pid)) for pid in list_family(up.pid)])
        finally:
            up.terminate()
            up.wait()


def _name(pid: int) -> str:
    words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").replace("\0", " ").split()
    return " ".join(word for word in words if "/" not in word and not word.startswith(("-c", "-I", "-S")))[:60]


def main() -> None:
    """Measure stacks in turns and print the figures of each."""
    parser = argparse.ArgumentParser(description="Memory of the idle embedded stack.")
    parser.add_argument("--python", action="append", default=[], help="the Python of another installation")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the stack idles")
    options = parser.parse_args()
    for _ in range(options.rounds):
        for python in (*options.python, sys.executable):
            found = measure(python, options.seconds)
            print(f"{python}: {found.total:.0f} MiB, ready after {found.ready:.1f} s, {found.cpu:.1f} s of CPU")
            for name, mib in found.processes:
                print(f"  {mib:6.1f}  {name}")


if __name__ == "__main__":
    main()
