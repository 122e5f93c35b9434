"""`python -m tests.fuzz.run [--requests N] [--lines N] [--first SEED]`: send many odd requests to a whole stack, as
operator, producer and reader, and run many odd command lines. The exit status is 1 if one of them failed.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from leasehold.stack import Stack
from scheduler.operations.principals import add_principal
from scheduler.store.migrating import migrate
from tests.fuzz.api import fuzz, list_strategies, make_login
from tests.fuzz.command_line import find_failures, write_files

ROLES: Final = ("operator", "producer", "reader")


def fuzz_api(requests: int, first: int) -> Mapping[str, str]:
    """Send at least this number of requests to a stack of its own, and return those that failed."""
    failures: dict[str, str] = {}
    sent = 0
    parts = len(ROLES) * len(list(list_strategies()))
    with tempfile.TemporaryDirectory() as folder, Stack(Path(folder) / "stack") as stack:
        store = stack.open_store()
        rows = [add_principal(store, {"name": role, "role": role}) for role in ROLES]
        store.close()
        logins = {row.role: make_login(row.name, row.key) for row in rows}
        address = f"{(stack.console_url or '').partition('?')[0].rstrip('/')}/api/v1"
        seed = first
        while sent < requests:
            found, statuses = fuzz(address, logins, max(1, min(20, requests // parts)), seed)
            failures |= found
            sent += statuses.total()
            _write(f"{sent} requests, {len(failures)} failed; statuses {dict(sorted(statuses.items()))}")
            seed += 1
    return failures


def fuzz_commands(lines: int, first: int) -> Mapping[str, str]:
    """Run this number of command lines in a folder with odd files, half of them with a database, and return those that
    failed.
    """
    failures: dict[str, str] = {}
    for start in range(first, first + lines, 100):
        with _odd_folder(has_database=start % 200 == 0):
            files = write_files(Path.cwd())
            found = find_failures(range(start, min(start + 100, first + lines)), files)
            failures |= {ascii(words): wrong for words, wrong in found}
        _write(f"{start + 100 - first} command lines, {len(failures)} failed")
    return failures


@contextmanager
def _odd_folder(*, has_database: bool) -> Iterator[None]:
    before, here = dict(os.environ), Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "here"
        folder.mkdir()
        os.chdir(folder)
        try:
            if has_database:
                os.environ["LEASEHOLD_DATABASE__URL"] = f"sqlite:///{name}/leasehold.db"
                migrate(os.environ["LEASEHOLD_DATABASE__URL"])
            yield
        finally:
            os.chdir(here)
            os.environ.clear()
            os.environ.update(before)


def _write(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run")
    parser.add_argument("--requests", type=int, default=36_000)
    parser.add_argument("--lines", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    failures = {
        **(fuzz_commands(given.lines, given.first) if given.lines else {}),
        **(fuzz_api(given.requests, given.first) if given.requests else {}),
    }
    for name, wrong in failures.items():
        _write(f"\n{name}\n{wrong}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
