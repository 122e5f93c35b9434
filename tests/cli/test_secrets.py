"""Commands with a password in the URL of the database: no output contains a part of it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

SECRET: Final = "sesame"
DOCTOR: Final = ("doctor", "--no-aws", "--timeout", "2")
IN_QUERY: Final = f"postgresql://me@127.0.0.1:1/db?password={SECRET}"
"""libpq reads a password from the query as well."""
UNENCODED: Final = f"postgresql://me:p@{SECRET}@127.0.0.1:1/db"
"""The password is `p@sesame`, whose `@` should have been written as `%40`."""


@pytest.mark.parametrize(("words", "url"), [(DOCTOR, IN_QUERY), (DOCTOR, UNENCODED), (("migrate",), UNENCODED)])
def test_no_command_shows_a_part_of_the_password_of_its_database(
    words: tuple[str, ...], url: str, tmp_path: Path
) -> None:
    """Nothing listens on this port, so that each command reports the URL that failed."""
    settings = {"LEASEHOLD_DATABASE__URL": url, "LEASEHOLD_BROKER__URL": "redis://127.0.0.1:1/0"}
    command = [sys.executable, "-m", "leasehold.cli", *words]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | settings, capture_output=True, text=True, timeout=110, check=False
    )
    shown = done.stdout + done.stderr
    assert done.returncode != 0
    assert "postgresql://" in shown
    assert "127.0.0.1:1/db" in shown
    assert SECRET not in shown
