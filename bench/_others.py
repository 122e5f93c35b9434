"""Raw Celery, Dask and Ray with trivial tasks, on this machine: `python -m bench._others [--counts N...] [--json]`.

Dask and Ray are installed from the package index into an environment of their own, in `build/`, at the first run. A
system that cannot be installed or run is skipped with its reason.
"""

import argparse
import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, Final

from bench._table import shorten
from testbed.guarding import Guarded, take_signals_as_interrupts
from testbed.servers import start_own_redis

ROOT: Final = Path(__file__).parents[1]
ENVIRONMENT: Final = ROOT / "build" / "others"
PACKAGES: Final = ("distributed>=2025.1", "ray>=2.40")
INSTALL_SECONDS: Final = 600
PLAY_SECONDS: Final = 1_200
MOST_OF_CELERY: Final = 10_000
"""Raw Celery takes minutes for more tasks."""


def make_environment(folder: Path = ENVIRONMENT) -> Path:
    """Install Dask and Ray unless the folder has them, and return the Python of that environment."""
    python, stamp = folder / "bin" / "python", folder / "installed"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == " ".join(PACKAGES):
        return python
    _show("installs Dask and Ray, once")
    venv.create(folder, clear=True, with_pip=True)
    words = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES]
    _run([str(word) for word in words], INSTALL_SECONDS)
    stamp.write_text(" ".join(PACKAGES), encoding="utf-8")
    return python


def measure_in_environment(name: str, rounds: int, counts: Sequence[int]) -> dict[str, Any]:
    """Return the figures of Dask or Ray."""
    script = Path(__file__).with_name("_trivial_tasks.py")
    # -P: the folder of the script has modules named like those of the standard library.
    words = [str(make_environment()), "-P", str(script), name, str(rounds), *(str(count) for count in counts)]
    found: dict[str, Any] = json.loads(_run(words, PLAY_SECONDS).splitlines()[-1])
    return found


def measure_celery(rounds: int, counts: Sequence[int]) -> dict[str, Any]:
    """Return the figures of raw Celery on a Redis of its own."""
    with TemporaryDirectory(prefix="leasehold-bench-") as folder:
        server = start_own_redis(Path(folder))
        os.environ["LEASEHOLD_BENCH_REDIS"] = server.url
        try:
            # The module reads the variable when it is imported.
            from bench import _plain_celery  # noqa: PLC0415

            most = [count for count in counts if count <= MOST_OF_CELERY]
            return _plain_celery.measure_celery(rounds, most, Path(folder))
        finally:
            server.stop()


def measure_all(rounds: int, counts: Sequence[int]) -> dict[str, dict[str, Any]]:
    """Return the figures of each system, or the reason why it was skipped."""
    systems: dict[str, Callable[[], dict[str, Any]]] = {
        "celery": lambda: measure_celery(rounds, counts),
        "dask": lambda: measure_in_environment("dask", rounds, counts),
        "ray": lambda: measure_in_environment("ray", rounds, counts),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, measure in systems.items():
        _show(f"measures {name}")
        try:
            found[name] = measure()
        except Exception as error:  # noqa: BLE001 - whatever another system does, the run goes on
            found[name] = {"skipped": describe(error)}
    return found


def _run(words: list[str], seconds: float) -> str:
    """Run a command that ends with this process, all its children too, and return what it prints."""
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        with Guarded(words, stdout=output, stderr=errors) as process:
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.terminate()
                raise
        output.seek(0)
        errors.seek(0)
        if status:
            raise subprocess.CalledProcessError(status, words[0], stderr=errors.read())
        return output.read()


def describe(error: Exception) -> str:
    """Return why a system was skipped: the last line that it or its installation wrote."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no end within {error.timeout:g} s"
    text = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
    lines = [line for line in str(text).splitlines() if line.strip()]
    return shorten(lines[-1]) if lines else type(error).__name__


def _show(text: str) -> None:
    print(f"- {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Measure the other systems and print their rates."""
    parser = argparse.ArgumentParser(prog="python -m bench._others", description="Raw Celery, Dask and Ray.")
    parser.add_argument("--counts", nargs="+", type=int, default=[1_000, 10_000], help="tasks; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=200, help="single tasks, each waited for; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    take_signals_as_interrupts()
    found = measure_all(options.rounds, options.counts)
    if options.json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        if "skipped" in figures:
            print(f"{name:<8}skipped: {figures['skipped']}")
            continue
        rates = ", ".join(f"{int(count):,}: {rate:,.0f}/s" for count, rate in figures["rates"].items())
        print(
            f"{name:<8}{figures['version']:<12}{rates}; one: p50 {figures['p50']:.1f} ms, p99 {figures['p99']:.1f} ms"
            f"; {figures['settings']}"
        )


if __name__ == "__main__":
    main()
