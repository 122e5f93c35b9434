"""Processes of their own that work on a store, whose URL they are given."""

import subprocess
import sys


def run_script(script: str, url: str) -> subprocess.CompletedProcess[str]:
    """Run a script. Return its output and exit status."""
    command = [sys.executable, "-c", script, url]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


FORKED = """
import os, sys
from scheduler.store.opening import open_store
from tests.builders import a_slot

store = open_store(sys.argv[1])

def save(name):
    with store.transaction() as transaction:
        transaction.save([a_slot(name)])

save("linux-1")
with store.transaction() as transaction:
    transaction.save([a_slot("linux-2")])
    child = os.fork()
    if child == 0:
        assert [slot.id for slot in store.find_slots()] == ["linux-1"]
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
child = os.fork()
if child == 0:
    save("linux-3")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
save("linux-4")
print(sorted(slot.id for slot in store.find_slots()))
"""

KILLED = """
import os, signal, sys
from sqlalchemy import text
from scheduler.store.opening import open_store
from tests.builders import a_reservation, a_slot

store = open_store(sys.argv[1])
with store.transaction() as transaction:
    if sys.argv[1].startswith("sqlite:"):
        # More than the page cache takes, so that part of it is in the WAL already.
        transaction._session._connection.execute(text("PRAGMA cache_size = 10"))
    transaction.insert_reservations([a_reservation(f"r{number}") for number in range(2000)])
    transaction.save([a_slot(f"linux-{number}") for number in range(1000)])
    transaction.next_tokens(10)
    os.kill(os.getpid(), signal.SIGKILL)
"""
