"""Run the EC2 emulator by itself: `python -m leasehold_emulator`, or `leasehold emulate-ec2`."""

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from leasehold_emulator.script import Script, change_speed, load_script
from leasehold_emulator.server import DEFAULT_PORT, EmulatorServer, run_emulator
from leasehold_emulator.settings import read_settings
from scheduler.model.validation import InvalidInputError
from workers.ec2 import EMULATOR_SECRET_VARIABLE

SETTINGS: Final = {
    "boot_seconds": float,
    "status_seconds": float,
    "terminate_seconds": float,
    "describe_lag_seconds": float,
    "interruption_queue": str,
    "interruption_rate": float,
    "random_seed": int,
}
"""Settings of the EC2 emulator that have an option on the command line → the type of the value. The file that
`--state-file` names overrides these options.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the EC2 emulator until a signal stops it, and return the exit status: 0, or 2 for wrong options or a wrong
    file, or 1 if the port is taken or the file cannot be read.
    """
    options = _parse(arguments)
    given = {
        name: getattr(options, name) for name in (*SETTINGS, "run_user_data") if getattr(options, name) is not None
    }
    try:
        script = load_script(options.script) if options.script else None
        if script is not None and options.speed is not None:
            script = change_speed(script, options.speed)
        run_emulator(
            options.host,
            options.port,
            state_file=options.state_file,
            call_log=options.call_log,
            settings=read_settings(given),
            region=options.region,
            secret=os.environ.get(EMULATOR_SECRET_VARIABLE) or None,
            on_ready=partial(_begin, script),
        )
    except InvalidInputError as error:
        return _fail(str(error), 2)
    except OSError as error:
        return _fail(str(error), 1)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m leasehold_emulator", description="An emulated EC2.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; default: 127.0.0.1")
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help=f"port to listen on; 0: any free port; default: {DEFAULT_PORT}"
    )
    parser.add_argument(
        "--region",
        default="us-east-1",
        help="AWS region to prepare at the start; default: us-east-1; other regions are prepared at their first use",
    )
    parser.add_argument(
        "--state-file", type=Path, help="file with settings, TOML or JSON, which is read again when it changes"
    )
    parser.add_argument(
        "--call-log", type=Path, help="file to which each EC2 call is appended as a line of JSON; default: none"
    )
    parser.add_argument("--script", type=Path, help="script of events in EC2, TOML or JSON, to play from the start on")
    parser.add_argument("--speed", help="seconds of the script that pass in one second; default: as in the script")
    parser.add_argument(
        "--run-user-data",
        action="store_true",
        default=None,
        help="play machines by running their user data as processes",
    )
    for name, kind in SETTINGS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=f"the emulator's setting {name}")
    return parser.parse_args(arguments)


def _begin(script: Script | None, server: EmulatorServer) -> None:
    if script is not None:
        server.play(script)
    sys.stdout.write(f"leasehold: EC2 emulator at {server.url}\n")
    sys.stdout.flush()


def _fail(message: str, status: int) -> int:
    sys.stderr.write(f"leasehold: {message}\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
