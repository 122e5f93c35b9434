"""The HTTP API with a whole stack: a reservation is submitted, leased and released, and a slot is drained."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasehold import Client, Refused, Unavailable
from leasehold.stack.configuration import find_free_port
from leasehold.web.token_file import write_token
from testbed.guarding import Guarded
from testbed.processes import wait_for
from testbed.stack import Stack

pytestmark = pytest.mark.timeout(120)


@contextmanager
def serve(stack: Stack, folder: Path) -> Iterator[Client]:
    """The console of this stack as a process of its own, and a client over HTTP that has its token."""
    port, token_file = find_free_port(), folder / "token"
    token = write_token(token_file)
    environment = {
        **os.environ,
        **stack.environment,
        "LEASEHOLD_CONSOLE__PORT": str(port),
        "LEASEHOLD_CONSOLE__TOKEN_FILE": str(token_file),
    }
    with Guarded([sys.executable, "-m", "leasehold.console", "--local"], env=environment) as process:
        try:
            with Client(f"http://127.0.0.1:{port}", token=token, timeout=30) as client:
                wait_for(lambda: _answers(client), "the server", 60)
                yield client
        finally:
            process.terminate()


def _answers(client: Client) -> bool:
    try:
        client.ping()
    except Unavailable:
        return False
    return True


def test_a_reservation_is_leased_and_released_over_http(stack: Stack, tmp_path: Path) -> None:
    with serve(stack, tmp_path) as client:
        row = client.reserve(id="over-http", pool="warm", ttl=60)
        assert row.phase in {"pending", "leased"}
        row = client.wait("over-http", timeout=60)
        assert row.leases[0].address is not None
        assert client.renew("over-http", row.token).ttl is not None
        assert [each.id for each in client.list("leased")] == ["over-http"]
        assert client.slot(row.slots[0]) is not None
        assert client.release("over-http", row.token).ok
        assert client.wait("over-http", "ended", timeout=30).phase == "released"
        assert [each.phase for each in client.recall("over-http")] == ["released"]
        with pytest.raises(Refused, match="has not ended"):
            client.renew("over-http", row.token)


def test_a_lease_is_held_over_http(stack: Stack, tmp_path: Path) -> None:
    """Its holder renews it, learns of its end, and cluster time comes from the server."""
    with serve(stack, tmp_path) as client, client.lease(id="held-over-http", pool="warm", ttl=5, wait=60) as lease:
        assert lease.is_held
        assert lease.deadline is not None
        assert lease.deadline > client.now()
        client.cancel("held-over-http", reason="test")
        assert lease.lost.wait(30)
