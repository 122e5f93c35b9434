"""What others notice of a greedy or hostile caller of the console: `python -m bench.doors`.

Printed are the times of `/healthz` and of submissions of another caller over HTTP: alone, while a reader asks for 16
explanations at once, while 1,100 silent connections are open, and while the reader also sends 256 requests at once that
no worker can read, and each of them again a second after its answer.

Must reach: `/healthz` within 1 s, submissions within 2 s.
"""

import http.client
import json
import resource
import socket
import threading
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from time import monotonic, perf_counter
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from bench._stack import SYSTEM, open_stack, show_quantiles
from leasehold.stack import Stack
from scheduler.operations.principals import add_principal
from scheduler.protocol.http_routes import API

SILENT: Final = 1100
MALFORMED: Final = 256
EXPLAINED: Final = 16
PENDING: Final = 2000
ROUNDS: Final = 40
HEALTH_SECONDS: Final = 1.0
SUBMIT_SECONDS: Final = 2.0


class Caller:
    """Sends requests to the console as one principal, each on a connection of its own."""

    def __init__(self, stack: Stack, name: str, role: str) -> None:
        store = stack.open_store()
        with closing(store):
            key = add_principal(store, {"name": name, "role": role, "accounts": []}).key
        self._port = urlsplit(stack.urls["console"]).port
        self._headers = {"Authorization": f"Basic {b64encode(f'{name}:{key}'.encode()).decode()}"}

    def send(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Return the status and the body of the answer."""
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=90)) as connection:
            kind = {} if body is None else {"Content-Type": "application/json"}
            connection.request(method, path, body, {**self._headers, **kind})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def connect(self) -> socket.socket:
        """Return a connection on which nothing is sent."""
        return socket.create_connection(("127.0.0.1", self._port), timeout=30)


def time_health(caller: Caller) -> float:
    """Seconds of a health check."""
    began = perf_counter()
    assert caller.send("GET", "/healthz")[0] == 200
    return perf_counter() - began


def time_submission(caller: Caller) -> float:
    """Seconds of a submission; the reservation is cancelled afterwards."""
    name, began = f"doors-{uuid4().hex}", perf_counter()
    status, body = caller.send("POST", f"{API}/reservations", json.dumps({"id": name, "system": SYSTEM}).encode())
    took = perf_counter() - began
    assert status == 201, body
    caller.send("POST", f"{API}/reservations/{name}/cancel", b"{}")
    return took


def measure(name: str, caller: Caller, rounds: int = ROUNDS) -> tuple[float, float]:
    """Print the times of both, and return the longest of each."""
    pairs = [(time_health(caller), time_submission(caller)) for _ in range(rounds)]
    health, submissions = [each for each, _ in pairs], [each for _, each in pairs]
    show_quantiles(f"{name}: /healthz", health)
    show_quantiles(f"{name}: submission", submissions)
    return max(health), max(submissions)


@contextmanager
def repeating(act: Callable[[], object], count: int, pause: float = 0.0) -> Any:
    """Call `act` again and again in `count` threads during the block, with this pause in seconds. Yield the list of
    what the calls have returned.
    """
    ends, done = threading.Event(), []

    def run() -> None:
        while not ends.is_set():
            with suppress(OSError, http.client.HTTPException):
                done.append(act())
            ends.wait(pause)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        ends.set()
        for thread in threads:
            thread.join(60)


def make_malformed() -> bytes:
    """Return a query that is nested more deeply than a worker reads."""
    deep: list[Any] = []
    for _ in range(40):
        deep = [deep]
    return json.dumps({"ids": ["a"], "more": deep}).encode()


def main() -> None:
    """Measure alone and beside each load."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
    found: list[tuple[float, float]] = []
    with open_stack(slots=2, leases_per_slot=1) as (stack, client), ExitStack() as opened:
        ada, eye = Caller(stack, "ada", "producer"), Caller(stack, "eye", "reader")
        pending = submit_pending(client)
        measure("warm-up", ada, 20)
        found.append(measure("alone", ada))
        with repeating(lambda: eye.send("GET", f"{API}/reservations/{pending}/explanation"), EXPLAINED) as done:
            began = monotonic()
            found.append(measure(f"{EXPLAINED} explanations at once", ada))
            print(f"{len(done) / (monotonic() - began):.1f} explanations a second: {count_statuses(done)}")
        silent = [opened.enter_context(closing(eye.connect())) for _ in range(SILENT)]
        found.append(measure(f"{len(silent)} silent connections", ada))
        silent += [opened.enter_context(closing(eye.connect())) for _ in range(SILENT)]
        body = make_malformed()
        with repeating(lambda: eye.send("POST", f"{API}/reservations/query", body), MALFORMED, 1.0) as done:
            found.append(measure(f"and {MALFORMED} malformed requests", ada))
            print(f"answers to the malformed requests: {count_statuses(done)}")
    show_result("/healthz", [health for health, _ in found], HEALTH_SECONDS)
    show_result("submission", [submission for _, submission in found], SUBMIT_SECONDS)


def submit_pending(client: Any) -> str:
    """Submit PENDING reservations that wait, and return the id of the last one."""
    names = [*client.reserve_many([{"system": SYSTEM, "ttl": 0} for _ in range(PENDING)])]
    return str(names[-1].reservation)


def count_statuses(done: Sequence[tuple[int, bytes]]) -> dict[int, int]:
    """Return how often each status was the answer."""
    statuses = [status for status, _ in done]
    return {status: statuses.count(status) for status in sorted(set(statuses))}


def show_result(name: str, most: Sequence[float], wanted: float) -> None:
    """Print the longest time of all, and what it must be."""
    print(f"{f'{name}, the longest':<42}{1000 * max(most):.0f} ms (must: at most {1000 * wanted:.0f} ms)")


if __name__ == "__main__":
    main()
