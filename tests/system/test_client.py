"""The client with a whole stack: waits that are longer than the ttl, and a lease whose slot is not in the view."""

import os
import subprocess
import sys
import threading
import time
from typing import cast

import pytest

from leasehold import Client
from scheduler.view.connection import make_redis
from testbed.processes import wait_for
from testbed.stack import Stack

pytestmark = pytest.mark.timeout(120)
TTL = 2.0


def await_older_than_its_ttl(stack: Stack, name: str) -> None:
    """Wait until the reservation is pending for longer than its ttl; fail if it ends before."""

    def is_old() -> bool:
        rows = stack.services.ports.store.find_reservations(ids=[name])
        assert all(row.phase == "pending" for row in rows), rows
        return any(time.time() - row.created_at > 2 * TTL for row in rows)

    wait_for(is_old, "a pending reservation older than its ttl")


def test_a_lease_is_waited_for_longer_than_its_ttl(stack: Stack) -> None:
    """Priority 0 puts the reservation on hold, so it is pending until the test changes the priority."""
    with Client(stack.redis_server.url) as client:
        holding: list[tuple[str, bool]] = []

        def hold() -> None:
            with client.lease(id="patient-holder", pool="warm", priority=0, ttl=TTL, wait=60) as lease:
                holding.append((lease.slot, lease.is_held))

        holder = threading.Thread(target=hold)
        holder.start()
        await_older_than_its_ttl(stack, "patient-holder")
        client.priority("patient-holder", 1)
        holder.join(60)
        assert holding == [("warm-1", True)]


def test_the_command_waits_for_longer_than_the_ttl(stack: Stack) -> None:
    command = [sys.executable, "-m", "leasehold.cli", "reserve", "--id", "patient-command", "--pool", "warm"]
    command += ["--priority", "0", "--ttl", str(TTL), "--wait", "60"]
    environment = {**os.environ, "LEASEHOLD_BROKER__URL": stack.redis_server.url}
    with (
        Client(stack.redis_server.url) as client,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment) as process,
    ):
        await_older_than_its_ttl(stack, "patient-command")
        client.priority("patient-command", 1)
        output, _ = process.communicate(timeout=60)
        assert (process.returncode, output.decode().split()[:4]) == (0, ["patient-command", "leased", "on", "warm-1"])
        client.cancel("patient-command")


def test_a_holder_gets_its_machine_although_the_view_lacks_the_slot(stack: Stack) -> None:
    """The audit of the view restores the row within a minute; the holder does not wait for that."""
    (slot,) = stack.slots("warm")
    with Client(stack.redis_server.url) as client:
        client.reserve(id="joined", pool="warm")
        client.wait("joined", timeout=60)
        view, key = make_redis(stack.redis_server.url), "leasehold:view:slots"
        body = cast("bytes", view.hget(key, slot.id))
        view.hdel(key, slot.id)
        try:
            with client.lease(id="joined", pool="warm", wait=40) as lease:
                assert (lease.instance_id, lease.address) == (slot.instance_id, slot.address)
                assert lease.address is not None
        finally:
            view.hsetnx(key, slot.id, body)
            view.close()
