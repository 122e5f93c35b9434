"""Probes: check whether a machine is ready for leases. A probe has a timeout, which the pool configures."""

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
"""Errors that mean that a probe got no answer: no connection, no HTTP, or an impossible address, path or port."""


class Probes:
    """Checks whether a machine is ready, by the kind of probe that its pool has. Implements the port `Probe`.

    A probe of the kind `none` passes if EC2's own status checks pass; `tcp`: if the port accepts a connection; `http`:
    if a GET of the path is answered with 2xx; `command`: if the command ends with status 0. A machine that does not run
    or has no address yet is not ready. In a pool with agents, the machine is ready if its agent has registered.
    """

    def is_ready(self, slot: Slot, machine: Machine, rules: Rules) -> bool:
        """Return whether the machine passes the probe of its pool. Return False if the machine does not run or the pool
        is no longer configured.
        """
        pool = rules.pools.get(slot.pool)
        if pool is None or machine.state != "running":
            return False
        if pool.agent:
            return slot.machine == machine.id
        probe, address = pool.probe, pool.ec2.choose_address(machine)
        match probe.kind:
            case "none":
                return machine.healthy is True
            case "command":
                return _runs(fill_command(probe.command, machine, address), probe.timeout)
            case "tcp":
                if address is None:
                    return False
                with suppress(*_NO_ANSWER), socket.create_connection((address, probe.port or 0), probe.timeout):
                    return True
                return False
            case "http":
                return address is not None and _answers(address, probe)


def fill_command(command: Sequence[str], machine: Machine, address: str | None) -> list[str]:
    """Return the arguments of the probe command `command`, with the machine's values in place of `{address}` and
    `{instance_id}`. Other braces stay.
    """
    values = {"address": address or "", "instance_id": machine.id}
    return [_PLACEHOLDER.sub(lambda found: values[found[1]], argument) for argument in command]


def _answers(address: str, probe: ProbeRules) -> bool:
    try:
        with closing(http.client.HTTPConnection(address, probe.port, timeout=probe.timeout)) as connection:
            connection.connect()
            # The timeout of a socket starts again with every byte. The timer ends an answer that comes byte by byte.
            timer = Timer(probe.timeout, _hang_up, [connection.sock])
            timer.start()
            try:
                connection.request("GET", probe.path, headers={"User-Agent": "leasehold", "Connection": "close"})
                return connection.getresponse().status // 100 == 2  # noqa: PLR2004 - HTTP status 2xx
            finally:
                timer.cancel()
    except _NO_ANSWER:
        return False


def _hang_up(connected: socket.socket) -> None:
    # The probe may have ended and closed the socket at this moment.
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
