"""Code that runs as another user of this host. Only root can switch users; other users skip these tests."""

import json
import os
import subprocess
import sys
from typing import Any, Final

import pytest

from tests.ci_rules import ONE_USER

UID: Final = 65534
"""The other user: `nobody` on Linux."""
_PRELUDE: Final = """
import base64, contextlib, encodings.idna, json, os, pathlib, redis, secrets, sys, urllib.error, urllib.request
from redis.backoff import NoBackoff
from redis.retry import Retry
once = {{"protocol": 2, "retry": Retry(NoBackoff(), 0)}}
with contextlib.suppress(redis.RedisError), redis.Redis("127.0.0.1", 1, **once) as connection:
    connection.ping()
os.setgroups([])
os.setgid({uid})
os.setuid({uid})
words = json.load(sys.stdin)
"""
"""The other user may be unable to read the interpreter's folder, so the code imports all modules before the switch."""


def require_other_user() -> None:
    """Skip the test if this process cannot switch users."""
    if os.geteuid() != 0:
        pytest.skip(ONE_USER)


def run_as_stranger(code: str, *words: object) -> Any:
    """Run code as another user and return the JSON that it prints. The code has `words` as a variable."""
    require_other_user()
    command = [sys.executable, "-c", _PRELUDE.format(uid=UID) + code]
    # Not in the command line, in which the code may search for secrets.
    given = json.dumps(words, default=str)
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
