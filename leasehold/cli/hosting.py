"""The commands `leasehold host …`, for hosts that register themselves in a static pool."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leasehold.cli.completing import complete_held_reservations, complete_slots
from leasehold.cli.connecting import connect
from leasehold.cli.interrupts import handling, inherited, list_ending
from leasehold.cli.output import (
    CPUS_HELP,
    INTERRUPTED,
    MEMORY_HELP,
    AsJson,
    CommandError,
    Timeout,
    explaining_refusals,
    parse_pairs,
    parse_resources,
    print_error,
    print_json,
    print_result,
    print_slot,
)
from leasehold.cli.requesting import check
from leasehold.cli.root import add_group, example, with_options_of
from leasehold.errors import Unavailable
from scheduler.protocol.visible import make_visible

if TYPE_CHECKING:
    from leasehold.agent.agent import HostSpec
    from leasehold.client.client import Client
    from leasehold.client.credentials import Credentials
    from leasehold.work.devices import Devices

SlotId = Annotated[str | None, typer.Argument(metavar="SLOT", help="Slot of the host; default: the name of this host.")]
Machine = Annotated[
    str | None,
    typer.Option(
        help="Id of this machine; default: derived from /etc/machine-id, else an id kept in the folder --state."
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder for the files that the agent keeps on this host; default: ~/.local/state/leasehold.",
    ),
]
Cgroup = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Delegated cgroup v2 folder, by which the cores of leases are limited; default: by CPU affinity.",
    ),
]
Commands = Annotated[
    bool,
    typer.Option(
        "--commands/--no-commands",
        help="Run the commands of the leases on this host. Needs the key of a principal with the role host.",
    ),
]
Device = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RESOURCE=ID,...",
        help="Ids of the devices of a resource, which commands get; default: 0, 1, ... for gpus. May be repeated.",
    ),
]
_STATE = frozenset({"slot", "machine"})
"""Fields of a host's request that were checked before the request was sent. If a refusal names one of them, the reason
is the present state of the slot.
"""
group = add_group("host", "Run and manage hosts of static pools.", "leasehold host run --pool lab")


def _describe(  # noqa: PLR0913, PLR0917 - an option each
    pool: Annotated[str, typer.Option(help='Pool of the host, which has provider = "static".')],
    slot: SlotId = None,
    machine: Machine = None,
    cpus: Annotated[
        str | None, typer.Option(help=f"Number of cpus of the slot, {CPUS_HELP}; default: all of this machine.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help=f"Memory of the slot {MEMORY_HELP}; default: all of this machine.")
    ] = None,
    resource: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=AMOUNT", help="Amount of another resource of the slot. May be repeated."),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Label of the slot. May be repeated.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Address at which holders reach this host; default: none.")
    ] = None,
    state: State = None,
) -> "HostSpec":
    """Return the registration of this host that the options describe. For a slot, a machine id or a resource that no
    option gives, the value is found on this machine. Raises InvalidInputError for a bad value.
    """
    from leasehold.agent.agent import HostSpec
    from leasehold.agent.machine import find_resources

    resources: dict[str, Any] = {**find_resources(), **parse_resources(resource, cpus, memory)}
    name, machine_id = _find_identity(slot, machine, state)
    labels = parse_pairs("--label", label or [])
    spec = HostSpec(slot=name, pool=pool, machine=machine_id, resources=resources, labels=labels, address=address)
    check("register", asdict(spec))
    return spec


def _find_identity(slot: str | None, machine: str | None, state: Path | None) -> tuple[str, str]:
    """Return the slot and the machine id of this host. If one of the arguments is None, find its value on this machine.
    Raises InvalidInputError for a bad id.
    """
    from leasehold.agent.machine import find_machine_id, find_slot_name, find_state_folder

    name = find_slot_name() if slot is None else slot
    machine_id = find_machine_id(state or find_state_folder()) if machine is None else machine
    check("leave", {"slot": name, "machine": machine_id})
    return name, machine_id


@group.command(
    "run",
    epilog=example(
        "leasehold host run --pool lab",
        "leasehold host run lab-7 --pool lab --cpus 8 --address 10.0.0.7",
    ),
)
@with_options_of(_describe)
def run(
    spec: "HostSpec",
    state: State = None,
    cgroup: Cgroup = None,
    device: Device = None,
    commands: Commands = True,
    as_json: AsJson = False,
) -> None:
    """Run the agent of this host until Ctrl-C.

    The agent registers the host, sends heartbeats, and prints a line for each change of the host's leases. It runs the
    commands that leases have, and limits the cores of these and of commands that `leasehold host exec` started. Ctrl-C
    or SIGTERM drains the host: the agent ends when the last lease of the host has ended. A second signal ends the agent
    at once.
    """
    from leasehold.agent.commands import find_own_key
    from leasehold.client.client import Client
    from leasehold.client.credentials import find_credentials

    credentials = find_credentials(os.environ)
    key = find_own_key(spec.slot) if credentials is None and commands else None
    if key is not None:
        credentials = find_credentials({}, key=key)
    open_client, devices = partial(Client, key=key), _read_devices(device)
    _run_agent(spec, open_client, state, cgroup, devices, credentials=credentials, commands=commands, as_json=as_json)


@group.command(
    "join",
    epilog=example(
        "leasehold host join https://fleet.example --cluster 3f0c6c1be5a94d0f",
        'leasehold host join "${join_url}" --cluster "${cluster_id}"',
    ),
)
def join_cluster(
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of Leasehold's HTTP API.")],
    cluster: Annotated[str, typer.Option(help="Identity of the cluster: the variable cluster_id of the user data.")],
    region: Annotated[
        str | None, typer.Option(help="AWS region of the cluster; default: AWS_REGION, else that of the AWS profile.")
    ] = None,
    state: State = None,
    cgroup: Cgroup = None,
    device: Device = None,
    commands: Commands = True,
    as_json: AsJson = False,
) -> None:
    """Run the agent of a launched machine until Ctrl-C.

    The machine proves by the credentials of its instance profile which instance it is, and gets the key of its slot.
    Its pool needs `agent = true`, and the role of the profile stands in `access.join_roles`. In a pool without an
    instance profile, the variable LEASEHOLD_JOIN_TOKEN has the token of the launch; the agent then keeps the key in the
    folder --state. From then on the agent does the same as `leasehold host run`, over the HTTP API.
    """
    from leasehold.agent.agent import HostSpec
    from leasehold.agent.joining import join, join_by_token
    from leasehold.agent.machine import find_resources, find_state_folder
    from leasehold.client.client import Client
    from leasehold.client.credentials import find_credentials
    from scheduler.protocol.join_tokens import TOKEN_VARIABLE

    show, devices = partial(_print_event, as_json=as_json), _read_devices(device)
    # Commands of leases do not inherit the token.
    token = os.environ.pop(TOKEN_VARIABLE, "")
    if token:
        try:
            found = join_by_token(url, cluster, token, state or find_state_folder(), show)
        except OSError as error:
            raise CommandError(f"--state: expected a folder that this user can write, got {error}") from None
    else:
        found = join(url, cluster, region, show)
    spec = HostSpec(found.slot, found.pool, found.machine, find_resources(), {})
    credentials = find_credentials({}, key=found.key)
    open_client = partial(Client, url, key=found.key)
    _run_agent(spec, open_client, state, cgroup, devices, credentials=credentials, commands=commands, as_json=as_json)


def _read_devices(options: list[str] | None) -> "Devices":
    from leasehold.work.devices import Devices

    found = {}
    for name, text in parse_pairs("--device", options or []).items():
        ids = tuple(text.split(","))
        if not all(ids) or len(set(ids)) < len(ids):
            raise typer.BadParameter(
                f"expected different ids, separated by commas, got {name}={text}", param_hint="--device"
            )
        found[name] = ids
    return Devices(found)


def _run_agent(
    spec: "HostSpec",
    open_client: "Callable[[], Client]",
    state: Path | None,
    cgroup: Path | None,
    devices: "Devices",
    *,
    credentials: "Credentials | None",
    commands: bool,
    as_json: bool,
) -> None:
    """Run the agent of a host until a signal, or until its slot has drained."""
    from leasehold.agent.agent import HostAgent
    from leasehold.agent.commands import HostCommands, find_signer
    from leasehold.agent.enforcer import Enforcer, find_limits, notes_folder, write_note
    from leasehold.agent.machine import find_state_folder
    from leasehold.work.command import HostIdentity
    from leasehold.work.runner import Runner

    try:
        limits = find_limits(cgroup)
    except OSError as error:
        raise CommandError(
            f"--cgroup: expected a folder of cgroup v2 that is delegated to this user, got {error}"
        ) from None

    show = partial(_print_event, as_json=as_json)
    signals: list[int] = []
    kept = state or find_state_folder()
    notes = notes_folder(kept, spec.slot)
    enforcer = Enforcer(notes, limits, show)
    with open_client() as client, explaining_refusals(_STATE):

        def make_runner(run: str) -> Runner:
            host = HostIdentity(spec.slot, spec.machine, run)
            return Runner(
                HostCommands(client, host),
                find_signer(credentials),
                host,
                kept / "commands" / spec.slot,
                show,
                cgroup=cgroup,
                devices=devices,
                note_start=lambda *lease: write_note(notes, *lease),
            )

        agent = HostAgent(client.hosts, spec, show, enforcer=enforcer, make_runner=make_runner if commands else None)

        def on_signal(number: int, _frame: object) -> None:
            signals.append(number)
            agent.leave()

        with handling(list_ending(), on_signal):
            agent.run()
    if len(signals) > 1:
        raise typer.Exit(INTERRUPTED)


@group.command("exec", epilog=example("leasehold host exec build-7 -- make -j8"))
def execute(
    reservation: Annotated[
        str,
        typer.Argument(
            metavar="RESERVATION",
            help="Reservation with a lease on this host.",
            autocompletion=complete_held_reservations,
        ),
    ],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", help="The command with its arguments.")],
    component: Annotated[str, typer.Option(help="Component of the reservation whose cores COMMAND may use.")] = "main",
    slot: Annotated[str | None, typer.Option(help="Slot of the host; default: the name of this host.")] = None,
    machine: Machine = None,
    state: State = None,
    timeout: Timeout = 30,
) -> None:
    """Run a command within the cores of a lease on this host.

    This process is replaced by COMMAND. The agent (`leasehold host run`) limits COMMAND and its children to the cores
    that the lease may use; without a running agent there is no limit. Without a lease on this host COMMAND is not run.
    """
    from leasehold.agent.enforcer import notes_folder, write_note
    from leasehold.agent.machine import find_state_folder, is_of_this_boot

    name, machine_id = _find_identity(slot, machine, state)
    with connect(timeout) as client, explaining_refusals(_STATE):
        host = client.hosts.leases(name, machine_id)
    if host.run is not None and not is_of_this_boot(host.run):
        found = "another machine with the same id"
        raise CommandError(f"--machine: expected the machine on which the agent of {name} runs, got {found}")
    held = sorted(lease.component for lease in host.leases if lease.reservation == reservation)
    if not held:
        raise CommandError(f'RESERVATION: expected a reservation that is leased on {name}, got "{reservation}"')
    if component not in held:
        parts = " or ".join(held)
        raise CommandError(f'--component: expected {parts}, which {reservation} has on {name}, got "{component}"')
    folder = notes_folder(state or find_state_folder(), name)
    try:
        note = write_note(folder, reservation, component, os.getpid())
    except OSError as error:
        raise CommandError(f"--state: expected a folder that can be written, got {error}") from None
    try:
        with inherited():
            os.execvp(command[0], command)  # noqa: S606 - running the user's command is the purpose
    except OSError as error:
        note.unlink(missing_ok=True)
        raise CommandError(f"the command {command[0]} cannot be started: {error.strerror}") from None


@group.command("register", epilog=example("leasehold host register lab-7 --pool lab --cpus 8 --label disk=ssd"))
@with_options_of(_describe)
def register_host(spec: "HostSpec", timeout: Timeout = 30, as_json: AsJson = False) -> None:
    """Register this host, or update its resources and labels.

    The request is refused if another machine has registered the slot.
    """
    with connect(timeout) as client, explaining_refusals(_STATE):
        print_slot(client.hosts.register(**asdict(spec)), as_json)


@group.command(epilog=example("leasehold host heartbeat lab-7"))
def heartbeat(slot: SlotId = None, machine: Machine = None, state: State = None, as_json: AsJson = False) -> None:
    """Send a heartbeat of this host.

    A host counts as offline after offline_timeout (a setting of its pool) without a heartbeat, so send several in that
    time. Heartbeats do not pass through Celery's queues.
    """
    name, machine_id = _find_identity(slot, machine, state)
    with connect() as client:
        client.hosts.heartbeat(name, machine_id)
        is_checked = True
        try:
            client.hosts.check(name, machine_id)
        except Unavailable as error:
            is_checked = False
            print_error(f"sent; it could not be checked whether {name} belongs to this machine: {error}")
        found = {"slot": name, "machine": machine_id, "checked": is_checked}
        print_result(found, f"{name} alive", as_json=as_json)


@group.command(epilog=example("leasehold host leave lab-7"))
def leave(
    slot: SlotId = None,
    machine: Machine = None,
    state: State = None,
    timeout: Timeout = 30,
    as_json: AsJson = False,
) -> None:
    """Take this host out of service.

    The host takes no new leases. When its last lease has ended, the host is out of service until it registers again.
    """
    name, machine_id = _find_identity(slot, machine, state)
    with connect(timeout) as client, explaining_refusals(_STATE):
        print_slot(client.hosts.leave(name, machine_id), as_json)


@group.command(epilog=example("leasehold host remove lab-7"))
def remove(
    slot: Annotated[str, typer.Argument(metavar="SLOT", help="Slot of the host.", autocompletion=complete_slots)],
    timeout: Timeout = 30,
    as_json: AsJson = False,
) -> None:
    """Remove a host that will not come back.

    The reservations with a lease on the host fail, and another machine may then register under the host's name.
    """
    check("remove", {"slot": slot})
    with connect(timeout) as client, explaining_refusals(_STATE):
        print_result(client.hosts.remove(slot), f"{slot} removed", as_json=as_json)


def _print_event(event: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(event)
    else:
        words = [str(event["event"]), *(f"{key}={value}" for key, value in event.items() if key != "event" and value)]
        sys.stdout.write(make_visible(" ".join(words)) + "\n")
    sys.stdout.flush()
