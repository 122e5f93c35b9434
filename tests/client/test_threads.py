"""The first requests of several threads at the same time, each case in a new process.

celery and kombu replace their own entries in `sys.modules` during their import. The finder below makes that race more
likely: it delays the import of both packages until the other threads import them too.
"""

import subprocess
import sys

import pytest

PRODUCER = """
import sys, threading
from importlib.machinery import PathFinder

THREADS = 8
gate = threading.Barrier(THREADS)
pause = threading.Event().wait

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name not in {"celery", "kombu"}:
            return None
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (pause(1.0), execute(module))
        return spec

sys.meta_path.insert(0, Slow())
sys.setswitchinterval(1e-5)

from leasehold.client.transport import RequestTransport

url, is_shared = sys.argv[1], sys.argv[2] == "shared"
shared, faults = RequestTransport(url), []

def send(number):
    wire = shared if is_shared else RequestTransport(url)
    gate.wait()
    try:
        wire.send("release", {"reservation": f"r{number}", "request": f"q{number}"})
    except Exception as fault:
        faults.append(repr(fault))

threads = [threading.Thread(target=send, args=[number]) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(threads) - len(faults), "sent", *sorted(set(faults)))
"""


@pytest.mark.parametrize("clients", ["own", "shared"])
def test_the_first_requests_of_several_threads_are_all_sent(clients: str, redis_url: str) -> None:
    command = [sys.executable, "-c", PRODUCER, redis_url, clients]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "8 sent"
