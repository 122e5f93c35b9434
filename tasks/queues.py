"""The queues, the names of the tasks (`leasehold.QUEUE.VERB` is routed to QUEUE), and which messages are gathered
(carried out together in one transaction).
"""

from typing import Final

from kombu import Queue

from scheduler.protocol.names import HEALTH, LAUNCH, QUEUE_NAMES, RESERVATIONS, TERMINATE, TICKS, task_name
from scheduler.protocol.verbs import VERBS

TICK: Final = task_name(TICKS, "tick")
LAUNCH_SLOT: Final = task_name(LAUNCH, "slot")
LAUNCH_BATCH: Final = task_name(LAUNCH, "batch")
START_SLOTS: Final = task_name(LAUNCH, "start")
STOP_SLOTS: Final = task_name(TERMINATE, "stop")
TERMINATE_SLOT: Final = task_name(TERMINATE, "slot")
TERMINATE_SLOTS: Final = task_name(TERMINATE, "slots")
CHECK: Final = task_name(HEALTH, "check")
SWEEP: Final = task_name(HEALTH, "sweep")
RECOVER: Final = task_name(HEALTH, "recover")
RECONCILE: Final = task_name(HEALTH, "reconcile")
PRUNE: Final = task_name(HEALTH, "prune")
IMAGES: Final = task_name(HEALTH, "images")
INTERRUPTIONS: Final = task_name(HEALTH, "interruptions")
MARKET: Final = task_name(HEALTH, "market")
HEAR: Final = task_name(HEALTH, "hear")
LEARN: Final = task_name(HEALTH, "learn")

HELD_A_PROCESS: Final = 64
"""For each process of its pool, a worker of the queue `reservations` may have taken this many messages that may be
gathered. Any other message counts as this many, so that the memory of the worker's main process is bounded.
"""
MOST_BYTES: Final = 65_536
"""Maximum length of the body of a message that may be gathered (carried out together with others). The length is in
bytes, or in characters if the body is a text.
"""
SEARCHES: Final = frozenset(task_name(RESERVATIONS, each.name) for each in VERBS.values() if each.is_search)
"""The names of the tasks of which a worker carries out few at the same time (tasks/gatherer.py)."""
MOST_SEARCHES: Final = 32
"""The most searches that a worker holds. The sender of a further one is asked to come again later."""
GATHERED_TASKS: Final = frozenset(task_name(RESERVATIONS, each.name) for each in VERBS.values() if each.is_gathered)
"""The names of the tasks whose waiting messages a worker carries out together in one transaction."""


def is_gatherable(task: object, body: object) -> bool:
    """Return whether a message may be carried out together with others: it is short and has one of GATHERED_TASKS. It
    is about one reservation, or has a short list of documents.

    `body`: the encoded body, as text or bytes.
    """
    return task in GATHERED_TASKS and isinstance(body, str | bytes) and len(body) <= MOST_BYTES


def is_small(task: object, body: object) -> bool:
    """Return whether a worker may hold many messages like this one: those that are gathered, and short searches."""
    return is_gatherable(task, body) or (task in SEARCHES and isinstance(body, str | bytes) and len(body) <= MOST_BYTES)


def list_queues() -> list[Queue]:
    """Return the cluster's queues as plain direct queues: a message goes onto the Redis list of the queue's name. So
    nothing must be declared before sending, and a flush of Redis loses no declaration.
    """
    return [Queue(name, routing_key=name, no_declare=True) for name in QUEUE_NAMES]


def list_routes() -> dict[str, dict[str, str]]:
    """Return Celery's routes: the middle part of a task's name is its queue."""
    return {task_name(name, "*"): {"queue": name} for name in QUEUE_NAMES}
