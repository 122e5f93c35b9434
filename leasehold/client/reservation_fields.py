"""The fields of a reservation that a client submits: (1) their types, and (2) their descriptions for users. A new field
must be added to both.

`scheduler/model/command_schemas.py` checks the fields, `scheduler/model/reservations.py` stores them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NotRequired, TypedDict


class CallbackFields(TypedDict):
    """A Celery task of the producer that the stack sends when a reservation is leased (`on_lease`) or has ended
    (`on_end`), and the queue from which the producer's workers take the task.
    """

    task: str
    queue: str


class ComponentFields(TypedDict, total=False):
    """The fields of a component of a reservation: `count` equal instances, each of which gets a slot."""

    name: str
    count: int
    kind: Literal["essential", "elastic"]
    resources: Mapping[str, float]
    labels: Mapping[str, str]


class Run(TypedDict):
    """A command that the hosts of a reservation's leases run: all essential instances run it, each on its slot.

    `grace`: seconds between `stop_signal` and KILL. `on_exit`: which exit codes release the reservation: 0 (`fail`) or
    all (`release`); any other outcome fails it, and its restart policy decides.
    """

    argv: Sequence[str]
    env: NotRequired[Mapping[str, str]]
    cwd: NotRequired[str | None]
    user: NotRequired[str | None]
    stop_signal: NotRequired[Literal["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "KILL"]]
    grace: NotRequired[float | str | None]
    on_exit: NotRequired[Literal["fail", "release"]]
    image: NotRequired[str | None]


class ReservationFields(TypedDict, total=False):
    """The fields of a reservation. Either `system` or `pool` is required. By default `id` and `key` are random. Only
    the hash of the key is sent.
    """

    id: str
    system: str
    pool: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]
    prefers: Mapping[str, str]
    account: str
    priority: float
    size: float
    ttl: float | str
    restart_policy: Literal["never", "on_failure"]
    on_interruption: Literal["requeue", "fail"]
    preemptible: bool
    tags: Mapping[str, str]
    runtime: float | str
    expected_runtime: float | str
    max_runtime: float | str
    components: Iterable[ComponentFields]
    on_lease: CallbackFields
    on_end: CallbackFields
    key: str
    run: Run


FIELDS: Final = """\b
Fields of a reservation, in --file and in Client.reserve:
  id                its name; default: a new one
  system            any pool of this system
  pool              this pool only; give either system or pool
  resources         amounts by name, like {"cpus": 2, "memory_mib": 4096}
  labels            labels that its slots must have, by name
  prefers           labels that its slots should have, by name
  account           the account that it counts for
  priority          higher is served first; 0: on hold; default: 1
  size              what the queues `size` and `dynsize` sort by
  ttl               how long a lease lasts without a renewal, in seconds or
                    like "15m"; 0: no end; default: the pool's
  runtime           how long it works, for simulations
  expected_runtime  how long it will probably run once it is leased, in
                    seconds or like "15m"; for information
  max_runtime       how long it runs at most; for information, unless its
                    account has enforce_max_runtime: then its lease ends
  restart_policy    "never" (default) or "on_failure"
  on_interruption   "requeue" (default) or "fail", when its machine is
                    interrupted
  preemptible       whether it may be preempted; default: true
  tags              texts by name, stored with it
  components        instances of several kinds, instead of resources; each has
    name            its name
    count           how many instances; default: 1
    kind            "essential" (default) or "elastic"
    resources       amounts by name, of each instance
    labels          labels that its slots must have, by name
  key               a secret of 32 to 200 letters, digits, - and _ that proves
                    the right to its lease; only its hash is sent; default: a
                    new one
  on_lease          a Celery task that is sent when it is leased
  on_end            a Celery task that is sent when it has ended; each has
    task            the name of the task
    queue           the queue that its workers read
  run               a command that the hosts of its leases run; it has
    argv            the program and its arguments
    env             variables of its environment, texts by name
    cwd             its working directory on the host
    user            the user of the host for its processes
    stop_signal     the signal that ends it: "TERM" (default), "INT", ...
    grace           seconds from that signal to KILL; default: the rules'
    on_exit         "fail" (default): exit code 0 releases the reservation;
                    "release": every exit code does
    image           the container image in which it runs"""
"""The fields of a reservation and their descriptions, as text. `leasehold reserve --help` prints it."""
