"""The command of a lease as the scheduler sends it: its check, its environment and its arguments."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from leasehold.client.models import LeaseKey
from leasehold.work.devices import GPUS
from leasehold.work.guard import TAG
from leasehold.work.ports import Taken
from scheduler.protocol.signing import RunFields, is_run_signed_by

INHERITED: Final = ("PATH", "HOME", "LANG")
"""Variables of the agent that a command gets."""
PEERS_IN_ENVIRONMENT: Final = 32_768
"""Most bytes of the list of peers in an environment variable. The file has the list always."""
CUDA: Final = "CUDA_VISIBLE_DEVICES"
"""The variable by which programs that use CUDA see only some GPUs."""
ENGINES: Final = ("podman", "docker")


class Signer(NamedTuple):
    """The principal of this host, which signs its requests and with whose key commands are signed."""

    principal: str
    key: bytes
    cluster: str


class HostIdentity(NamedTuple):
    """The slot of a host, the id of its machine, and the run of its agent."""

    slot: str
    machine: str
    run: str


class WrongCommand(Exception):  # noqa: N818 - an outcome
    """Raised if a command is not the one that this host asked for, or cannot be read. The message states why."""


class Peer(msgspec.Struct, frozen=True):
    """One lease of the reservation, with the address of its machine."""

    component: str
    slot: str
    address: str | None = None


class LeaseCommand(msgspec.Struct, frozen=True, kw_only=True):
    """The command of a lease, and what the host needs to know of the lease."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}
    cwd: str | None = None
    user: str | None = None
    stop_signal: Literal["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "KILL"] = "TERM"
    grace: float = 0.0
    image: str | None = None
    reservation: str
    component: str
    token: int
    slot: str
    index: int = 0
    ttl: float | None = None
    deadline: float | None = None
    """When the lease ends in any case, in cluster time."""
    offline_timeout: float | None = None
    resources: dict[str, float] = {}
    cores: float | None = None
    peers: tuple[Peer, ...] = ()


def read_command(taken: Taken, signer: Signer, host: HostIdentity, key: LeaseKey, nonce: str) -> LeaseCommand:
    """Return the command in an answer. Raises WrongCommand if it is not signed for exactly this request."""
    fields = RunFields(
        cluster=signer.cluster,
        principal=signer.principal,
        slot=host.slot,
        machine=host.machine,
        run=host.run,
        reservation=key.reservation,
        component=key.component,
        token=str(key.token),
        nonce=nonce,
        command_sha256=hashlib.sha256(taken.command.encode("utf-8", "surrogatepass")).hexdigest(),
    )
    if not is_run_signed_by(signer.key, fields, taken.signature):
        raise WrongCommand("it is not signed for this host, lease and request")
    try:
        command = msgspec.json.decode(taken.command, type=LeaseCommand)
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise WrongCommand(f"it cannot be read: {error}") from None
    named = LeaseKey(command.reservation, command.component, command.token)
    if (named, command.slot) != (key, host.slot):
        raise WrongCommand(f"it is for {named.reservation} {named.component} on {command.slot}")
    return command


def make_environment(
    command: LeaseCommand,
    tag: str,
    notice: str,
    peers: str,
    devices: Mapping[str, Sequence[str]],
    inherited: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the environment of a command. `notice`, `peers`: the paths of its files. `devices`: the ids of its
    devices, by resource. `inherited`: the environment of the agent.
    """
    known = os.environ if inherited is None else inherited
    kept = {name: known[name] for name in INHERITED if name in known}
    if command.user is not None:
        # The guard sets that of the user.
        kept.pop("HOME", None)
    peers_text = format_peers(command)
    own: dict[str, Any] = {
        "RESERVATION": command.reservation,
        "TOKEN": command.token,
        "SLOT": command.slot,
        "COMPONENT": command.component,
        "INDEX": command.index,
        "DEADLINE": command.deadline,
        "CORES": None if command.cores is None else f"{command.cores:g}",
        "RESOURCES": json.dumps(command.resources),
        "DEVICES": json.dumps(devices) if devices else None,
        "PEERS": peers_text if len(peers_text.encode()) <= PEERS_IN_ENVIRONMENT else None,
        "PEERS_FILE": peers,
        "NOTICE_FILE": notice,
    }
    variables = {f"LEASEHOLD_{name}": str(value) for name, value in own.items() if value is not None}
    cuda = {CUDA: ",".join(devices[GPUS])} if GPUS in devices else {}
    return kept | command.env | variables | cuda | {TAG: tag}


def format_peers(command: LeaseCommand) -> str:
    return json.dumps([msgspec.to_builtins(each) for each in command.peers])


class Program(NamedTuple):
    """The arguments that start a command, and those of the program that ends what the command leaves; None: none."""

    argv: list[str]
    after: list[str] | None = None


def make_program(
    command: LeaseCommand,
    name: str,
    environment: Mapping[str, str],
    folder: str,
    find: Callable[[str], str | None] = shutil.which,
) -> Program:
    """Return the arguments that start the command: its own, or those of a container engine if it has an image. `name`:
    the name of the container. `folder`: the folder with the files of the command, which the container sees.

    Raises WrongCommand if this host has no container engine.
    """
    if command.image is None:
        return Program(list(command.argv))
    engine = next((found for each in ENGINES if (found := find(each))), None)
    if engine is None:
        raise WrongCommand(f"this host has no container engine ({' or '.join(ENGINES)}) for the image {command.image}")
    names = [each for each in environment if each in command.env or each.startswith("LEASEHOLD_") or each == CUDA]
    options = [word for each in names for word in ("--env", each)]
    options += ["--label", f"leasehold.lease={name}", "--name", name, "--volume", f"{folder}:{folder}"]
    options += ["--stop-signal", f"SIG{command.stop_signal}", "--init", "--network", "host"]
    options += [] if command.cwd is None else ["--workdir", command.cwd]
    options += [] if command.user is None else ["--user", command.user]
    return Program([engine, "run", "--rm", *options, command.image, *command.argv], [engine, "rm", "--force", name])
