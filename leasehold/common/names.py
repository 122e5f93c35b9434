"""The names that both sides of the wire use: queues, tasks, and what they share in Redis."""

from typing import Final

RESERVATIONS: Final = "reservations"
TICKS: Final = "ticks"
LAUNCH: Final = "launch"
HEALTH: Final = "health"
TERMINATE: Final = "terminate"
QUEUE_NAMES: Final = (RESERVATIONS, TICKS, LAUNCH, HEALTH, TERMINATE)
"""The queues of the workers, each a Redis list of that name."""
TASK_PREFIX: Final = "leasehold"
"""The first part of the names of all tasks."""
CANARY: Final = "canary"
"""The verb of the canary task, which every queue has."""
DEFAULT_PREFIX: Final = "leasehold:"
"""The default prefix of the names of all keys and channels in Redis."""


def task_name(queue: str, verb: str) -> str:
    """Return the name of a task, like `leasehold.launch.slot`."""
    return f"{TASK_PREFIX}.{queue}.{verb}"


class RedisNames:
    """The keys and channels that workers, clients and hosts share. All names begin with `prefix`."""

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        self.prefix, self._view = prefix, f"{prefix}view:"
        self.generation = f"{self._view}generation"
        """The view's generation: `<random>:<run id of the server>`."""
        self.report = f"{self._view}report"
        """The report of the last tick, as JSON."""
        self.leader = f"{prefix}leader"
        """The leader lock."""
        self.building, self.sequence = f"{self._view}building", f"{self._view}sequence"
        self.deltas, self.gone, self.leaving = f"{self._view}deltas", f"{self._view}gone", f"{self._view}leaving"
        self.clock, self.clocks = f"{prefix}clock", f"{prefix}clocks"
        """Cluster time minus the time of Redis; the offsets of the processes' clocks."""
        self.cluster = f"{prefix}cluster"
        """The identity of the cluster."""
        self.taken = f"{prefix}queue:taken"
        """`sent_at` of the request that a worker took last, by which a client sees whether its queue is worked off."""
        self.reply_start = f"{prefix}reply:"
        self.heartbeat_start = f"{prefix}heartbeat:"

    def rows(self, kind: str) -> str:
        """Return the hash of the view's rows of one kind (`reservations`, `slots`, `accounts`): id -> JSON."""
        return f"{self._view}{kind}"

    def heartbeat(self, slot: str) -> str:
        """Return the key that the host of this slot sets to report that it is alive: its machine's id."""
        return f"{self.heartbeat_start}{slot}"

    def host(self, slot: str) -> str:
        """Return the channel with hints for the host of a slot that its slot changed."""
        return f"{self.prefix}host:{slot}"

    def notice(self, reservation: str) -> str:
        """Return the channel with notices of the changes of a reservation."""
        return f"{self.prefix}notice:{reservation}"

    def reply(self, word: str) -> str:
        """Return the list on which an answer is pushed."""
        return f"{self.reply_start}{word}"
