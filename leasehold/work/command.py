"""The command of a lease as the scheduler sends it: its check, its environment and its arguments; the requests of a
host about it; and the devices of a host, which it gives to commands, each device to one command at a time.

The scheduler counts the amount of a resource and knows no single device. The host chooses the first free ones. A lease
with a part of a device, such as 0.5 gpus, gets the amount and no device of its own.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, islice
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from leasehold.client.models import LeaseKey
from leasehold.errors import Refused
from leasehold.work.guard import TAG
from scheduler.protocol.signing import RunFields, is_run_signed_by

Why = Literal["exited", "signal", "not_started", "out_of_memory", "revoked", "fenced", "limit", "lost"]
"""How a command ended. `revoked`: the host ended it because its lease ends. `fenced`: the host ended it because it had
no answer of the scheduler in time. `lost`: the host does not know.
"""


class Taken(NamedTuple):
    """The answer to a request for a command: the command as JSON text, and its signature for this one request."""

    command: str
    signature: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended, with the end of its output (`tail`) and the number of bytes that it printed."""

    why: Why
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    """One line about a command that did not start, was lost, or could not be ended completely."""
    tail: str = ""
    bytes: int = 0


class Printed(NamedTuple):
    """The end of the output of a running command."""

    key: LeaseKey
    tail: str
    bytes: int


class Renewed(NamedTuple):
    """A lease was renewed; it expires `ttl` seconds later; None: never."""

    ttl: float | None


class CommandsPort(Protocol):
    """The requests of one run of a host's agent, each about several leases. They raise NotAnswered and Unavailable, and
    Refused if a request is refused as a whole. All may be repeated. Several threads may send them at the same time.
    """

    def take(self, nonces: Mapping[LeaseKey, str]) -> Mapping[LeaseKey, Taken | Refused]:
        """Ask for the commands of leases. `nonces`: by lease, a random text for this request alone."""

    def started(self, keys: Sequence[LeaseKey]) -> Mapping[LeaseKey, Refused]:
        """Report that the commands of leases run. Return the refusals."""

    def output(self, reports: Sequence[Printed]) -> None:
        """Report the output of running commands. A refused report is dropped."""

    def exited(self, outcomes: Mapping[LeaseKey, Outcome]) -> Mapping[LeaseKey, Refused]:
        """Report how the commands of leases ended. Return the refusals."""

    def renew(self, keys: Sequence[LeaseKey]) -> Mapping[LeaseKey, Renewed | Refused]:
        """Renew leases. A lease without an answer is missing in the result."""

    def now(self) -> float:
        """Return cluster time in seconds since the epoch."""


GPUS: Final = "gpus"
"""The resource whose devices have the numbers 0, 1 and so on if the host names none."""


class NoDevice(Exception):  # noqa: N818 - an outcome
    """Raised if fewer devices are free than a lease needs. The message states why."""


class Devices:
    """`named`: resource -> the ids of its devices."""

    def __init__(self, named: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self._named = named or {}

    def choose(self, resources: Mapping[str, float], used: Iterable[Mapping[str, list[str]]]) -> dict[str, list[str]]:
        """Return the devices for a lease with these amounts, by resource. `used`: those of the other commands. Raises
        NoDevice.
        """
        taken = {(name, each) for devices in used for name, found in devices.items() for each in found}
        chosen = {}
        for name in sorted({GPUS, *self._named} & resources.keys()):
            needed = resources[name]
            if needed % 1:
                continue
            ids = self._named[name] if name in self._named else map(str, count())
            free = (each for each in ids if (name, each) not in taken)
            chosen[name] = list(islice(free, int(needed)))
            if (found := len(chosen[name])) < needed:
                raise NoDevice(f"{name}: the lease needs {needed:g} devices, and {found} of this host are free")
        # A command without a lease on them does not see the devices that the host names. One with a part does.
        return {name: [] for name in self._named if not resources.get(name, 0.0)} | chosen


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
