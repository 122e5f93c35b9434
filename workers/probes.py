"""Probes: is a machine ready to serve? Each is one question, bounded by the probe's timeout."""

import http.client
import os
import re
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import closing, suppress
from threading import Timer
from typing import Final

from scheduler.model.machines import ProbeRules
from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Slot

_PLACEHOLDER: Final = re.compile(r"\{(address|instance_id)\}")
_NO_ANSWER: Final = (OSError, http.client.HTTPException, ValueError, OverflowError)
"""What asking raises: nobody there, no HTTP, or an address, path or port that cannot be."""


class Probes:
    """The `Probe` port: asks as the slot's pool says.

    `none`: EC2's own status checks; `tcp`: the port takes a connection; `http`: a GET of the path is answered
    with 2xx; `command`: ends with status 0. A machine that does not run, or has no address yet, is not ready.
    """

    def is_ready(self, slot: Slot, machine: Machine, rules: Rules) -> bool:
        """Whether the machine answers its pool's probe; False for a pool that is configured no more."""
        pool = rules.pools.get(slot.pool)
        if pool is None or machine.state != "running":
            return False
        probe = pool.probe
        match probe.kind:
            case "none":
                return machine.healthy is True
            case "command":
                return _runs(fill_command(probe.command, machine), probe.timeout)
            case "tcp":
                return machine.address is not None and _connects(machine.address, probe)
            case "http":
                return machine.address is not None and _answers(machine.address, probe)


def fill_command(command: Sequence[str], machine: Machine) -> list[str]:
    """The arguments with `{address}` and `{instance_id}` replaced; other braces stay as they are."""
    values = {"address": machine.address or "", "instance_id": machine.id}
    return [_PLACEHOLDER.sub(lambda found: values[found[1]], argument) for argument in command]


def _connects(address: str, probe: ProbeRules) -> bool:
    try:
        with socket.create_connection((address, probe.port or 0), timeout=probe.timeout):
            return True
    except _NO_ANSWER:
        return False


def _answers(address: str, probe: ProbeRules) -> bool:
    try:
        with closing(http.client.HTTPConnection(address, probe.port, timeout=probe.timeout)) as connection:
            connection.connect()
            return _gets_2xx(connection, probe)
    except _NO_ANSWER:
        return False


def _gets_2xx(connection: http.client.HTTPConnection, probe: ProbeRules) -> bool:
    # A timeout of sockets counts anew with every byte; the timer ends a machine that drips.
    timer = Timer(probe.timeout, _hang_up, [connection.sock])
    timer.start()
    try:
        connection.request("GET", probe.path, headers={"User-Agent": "leasehold", "Connection": "close"})
        return connection.getresponse().status // 100 == 2  # noqa: PLR2004 - HTTP's own figure
    finally:
        timer.cancel()


def _hang_up(connected: socket.socket) -> None:
    # The probe may have ended, and closed it, at this very moment.
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def _runs(command: Sequence[str], timeout: float) -> bool:
    quiet = subprocess.DEVNULL
    try:
        process = subprocess.Popen(  # noqa: S603 - the operator's own command, without a shell
            command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        )
    except _NO_ANSWER:
        return False
    try:
        return process.wait(timeout) == 0
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False
