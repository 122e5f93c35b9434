"""Names that the client, the workers and the scheduler share: queues, tasks, and keys and channels in Redis."""

import re
from typing import Final

RESERVATIONS: Final = "reservations"
TICKS: Final = "ticks"
LAUNCH: Final = "launch"
HEALTH: Final = "health"
TERMINATE: Final = "terminate"
QUEUE_NAMES: Final = (RESERVATIONS, TICKS, LAUNCH, HEALTH, TERMINATE)
"""The names of the workers' queues. Each queue is a Redis list with this name."""
TASK_PREFIX: Final = "leasehold"
"""First part of the name of every Celery task."""
CANARY: Final = "canary"
"""Verb of the canary, a test task that the workers of every queue answer."""
OWN_STACK_VARIABLE: Final = "LEASEHOLD_OWN_STACK"
"""Variable of the environment that is 1 in the processes of a stack that `leasehold up` runs with a Redis of its own.
It is no key of the settings: no file may set it.
"""
DEFAULT_PREFIX: Final = "leasehold:"
"""Default for the beginning of the names of all keys and channels in Redis."""
REPLY_WORD: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
"""What may stand behind `reply:` in the address of an answer. Workers answer to no other address."""


def task_name(queue: str, verb: str) -> str:
    """Return the name of the Celery task for a verb on a queue, like `leasehold.launch.slot`."""
    return f"{TASK_PREFIX}.{queue}.{verb}"


class RedisNames:
    """The names of the keys and channels in Redis that workers, clients and hosts share. All names begin
    with `prefix`.
    """

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        self.prefix, self._view = prefix, f"{prefix}view:"
        self.generation = f"{self._view}generation"
        """Key of the view's generation, a text that changes when the view is built again: `<random>:<run id of the
        server>`.
        """
        self.report = f"{self._view}report"
        """Key of the last tick's report as JSON, without the waiting reservations."""
        self.waits = f"{self._view}waits"
        """Key of the hash with the reservations that waited at the last tick, in blocks."""
        self.history = f"{prefix}history"
        """Key of the hash with the samples of the last hour: place in the ring -> sample."""
        self.forecasts = f"{prefix}forecasts"
        """Key of the hash with the forecasts of waiting reservations, and the start of the keys beside it."""
        self.leader = f"{prefix}leader"
        """Key of the leader lock."""
        self.building, self.sequence = f"{self._view}building", f"{self._view}sequence"
        self.deltas, self.gone, self.leaving = f"{self._view}deltas", f"{self._view}gone", f"{self._view}leaving"
        self.clock, self.clocks = f"{prefix}clock", f"{prefix}clocks"
        """`clock`: key of the offset that the leader publishes (cluster time minus the time of Redis). `clocks`: key of
        the hash with the clock offset of each process.
        """
        self.cluster = f"{prefix}cluster"
        """Key of the identity of the cluster to which this Redis belongs."""
        self.under_way = f"{prefix}under-way"
        """Key of the sorted set of the slow work that workers carry out now, with the cluster times until which it
        counts.
        """
        self.taken = f"{prefix}queue:taken"
        """Key of the sending time (`sent_at`) of the request that a worker took from its queue last. Clients read it to
        see whether the queue moves.
        """
        self.reply_start = f"{prefix}reply:"
        self.heartbeat_start = f"{prefix}heartbeat:"

    def rows(self, kind: str) -> str:
        """Return the key of the hash with one kind of the view's rows (`reservations`, `slots`, `accounts`). The hash
        maps the id of each row to the row as JSON.
        """
        return f"{self._view}{kind}"

    def heartbeat(self, slot: str, run: str | None = None) -> str:
        """Return the key that the host of this slot sets with each heartbeat. `run`: the id of a run of its agent. The
        key of a run is its own: only the agent and the workers know the id, so no other host can overwrite the key.
        """
        return f"{self.heartbeat_start}{slot}" if run is None else f"{self.heartbeat_start}{slot}:{run}"

    def host(self, slot: str) -> str:
        """Return the channel of the hints for the host of this slot. A hint is a message that the slot has changed."""
        return f"{self.prefix}host:{slot}"

    def notice(self, reservation: str) -> str:
        """Return the channel of the notices about this reservation. A notice is a message that the reservation's row
        has changed.
        """
        return f"{self.prefix}notice:{reservation}"

    def reply(self, word: str) -> str:
        """Return the key of the list that receives the answer to one request. `word`: a text that is different for each
        request.
        """
        return f"{self.reply_start}{word}"
