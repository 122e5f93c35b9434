"""`python -m tests.chaos.run`: chaos runs of several seeds, one after the other; `make chaos` calls it."""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from testbed.guarding import note_interrupts
from tests.chaos.commands import switches as command_switches
from tests.chaos.commands.nemesis import CommandNemesis
from tests.chaos.commands.seed_run import COUNT, run_command_seed
from tests.chaos.database import DATABASES, POOLED, Database, open_database
from tests.chaos.faults import FAULTS
from tests.chaos.seed_run import Verdict, describe_counts, run_seed
from tests.chaos.switches import SWITCHES

INTERRUPTED: Final = 130
FAULTS_FOR: Final[dict[str, tuple[str, ...]]] = {
    "term": ("fence",),
    "token": ("launch",),
    "resend": ("loss", "drop", "redis"),
    "epoch": ("repeat",),
    "answer": ("answer",),
    "power": ("late stop",),
    "jump": ("restore", "kill"),
}
"""Guard → the faults that it protects against. A run without the guard injects only these, and must fail."""


def main(arguments: Sequence[str]) -> int:
    """Run the seeds and return the status: 1 if a promise was broken, 130 if the run was interrupted.

    With `--off` the status is 1 if no promise was broken.
    """
    options = _read(arguments)
    note_interrupts()
    if options.off == "jump":
        # The witness of this process reads the database, too, and would refuse the older state.
        SWITCHES["jump"]()
    verdicts: list[Verdict] = []
    try:
        for verdict in _play_all(options):
            verdicts.append(verdict)
            _show(verdict)
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted in seed {options.first + len(verdicts)}\n")
        _summarize(verdicts)
        return INTERRUPTED
    broken = _summarize(verdicts)
    if options.off:
        sys.stdout.write(f"without the guard {options.off} this was {'noticed' if broken else 'NOT NOTICED'}\n")
        return 0 if broken else 1
    return 1 if broken else 0


def _play_all(options: argparse.Namespace) -> Iterator[Verdict]:
    """Run one seed after the other; with `--off` until a promise is broken."""
    for seed in range(options.first, options.first + options.seeds):
        verdict = _play(seed, options)
        yield verdict
        if options.off and verdict.violations:
            return


def _summarize(verdicts: Sequence[Verdict]) -> int:
    """Print the sums over all seeds, and return how many seeds had violations."""
    broken = sum(bool(verdict.violations) for verdict in verdicts)
    sys.stdout.write(
        f"{len(verdicts)} seeds, {sum(each.reservations for each in verdicts)} reservations, "
        f"{sum(len(each.faults) for each in verdicts)} faults, {sum(each.terms for each in verdicts)} terms: "
        f"{broken} seeds with violations\n"
    )
    for title, counts in (
        ("calls of EC2", (each.calls for each in verdicts)),
        ("at named points", (each.struck for each in verdicts)),
    ):
        sys.stdout.write(f"{title}: {describe_counts(sum(counts, Counter())) or 'none'}\n")
    return broken


def _read(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of faults, over all seeds together")
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds share them")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--reservations", type=int, help=f"reservations a seed; default: 200, of commands {COUNT}")
    parser.add_argument("--database", choices=[*DATABASES, POOLED, "both"], default="both", help="both: in turns")
    parser.add_argument("--commands", action="store_true", help="chaos for commands on leases")
    parser.add_argument("--full", action="store_true", help="with --commands: commands of 30 s and stops of 10 s")
    names = "names of faults to inject (tests/chaos/faults.py); default: all, or those of the guard that is off"
    parser.add_argument("--only", type=_read_faults, default=(), metavar="NAME,NAME", help=names)
    guards = sorted({*SWITCHES, *command_switches.AGENT_SWITCHES})
    parser.add_argument("--off", choices=guards, help="switch a guard off; fails unless a promise is broken")
    parser.add_argument(
        "--keep",
        type=Path,
        help="folder for the files of all seeds; default: those of seeds with violations stay in the temporary folder",
    )
    options = parser.parse_args(arguments)
    faults, switches = (
        (tuple(CommandNemesis.weights), command_switches.AGENT_SWITCHES) if options.commands else (FAULTS, SWITCHES)
    )
    if unknown := [name for name in options.only if name not in faults]:
        parser.error(f"argument --only: expected names among {', '.join(faults)}; got {unknown[0]!r}")
    if options.off and options.off not in switches:
        parser.error(f"argument --off: expected one of {', '.join(switches)}; got {options.off!r}")
    return options


def _read_faults(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _play(seed: int, options: argparse.Namespace) -> Verdict:
    kind = DATABASES[seed % 2] if options.database == "both" else options.database
    root = options.keep or Path(tempfile.gettempdir())
    root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-", dir=root))
    try:
        with open_database(kind, folder) as database:
            verdict = _run(folder, database, seed, options)
    except KeyboardInterrupt:
        _remove(folder, options)
        raise
    if not verdict.violations:
        _remove(folder, options)
    return verdict


def _run(folder: Path, database: Database, seed: int, options: argparse.Namespace) -> Verdict:
    seconds, off = options.seconds / options.seeds, options.off
    if options.commands:
        only = options.only or command_switches.FAULTS_FOR.get(off or "", ())
        count = options.reservations or COUNT
        return run_command_seed(
            folder, database, seed, count=count, seconds=seconds, off=off, only=only, is_full=options.full
        )
    only = options.only or FAULTS_FOR.get(off or "", ())
    return run_seed(folder, database, seed, count=options.reservations or 200, seconds=seconds, off=off, only=only)


def _remove(folder: Path, options: argparse.Namespace) -> None:
    if options.keep is None:
        shutil.rmtree(folder, ignore_errors=True)


def _show(verdict: Verdict) -> None:
    sys.stdout.write(verdict.describe() + "\n")
    for line in verdict.violations[:20]:
        sys.stdout.write(f"  {line}\n")
    if verdict.violations:
        sys.stdout.write("  faults: " + "; ".join(verdict.faults) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
