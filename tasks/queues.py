"""The queues and the names of the tasks: `leasehold.QUEUE.VERB` is routed to QUEUE."""

from typing import Final

from kombu import Queue

from leasehold.common.names import HEALTH, LAUNCH, QUEUE_NAMES, RESERVATIONS, TERMINATE, TICKS, task_name

TICK: Final = task_name(TICKS, "tick")
LAUNCH_SLOT: Final = task_name(LAUNCH, "slot")
TERMINATE_SLOT: Final = task_name(TERMINATE, "slot")
CHECK: Final = task_name(HEALTH, "check")
SWEEP: Final = task_name(HEALTH, "sweep")
RECOVER: Final = task_name(HEALTH, "recover")
RECONCILE: Final = task_name(HEALTH, "reconcile")
PRUNE: Final = task_name(HEALTH, "prune")
INTERRUPTIONS: Final = task_name(HEALTH, "interruptions")
HEAR: Final = task_name(HEALTH, "hear")
LEASES: Final = task_name(RESERVATIONS, "leases")
QUERY: Final = task_name(RESERVATIONS, "query")
EXPLAIN: Final = task_name(RESERVATIONS, "explain")
CONDITIONS: Final = task_name(RESERVATIONS, "conditions")


def list_queues() -> list[Queue]:
    """Return the cluster's queues as plain direct queues: a message goes onto the Redis list of the queue's name. So
    nothing must be declared before sending, and a flush of Redis loses no declaration.
    """
    return [Queue(name, routing_key=name, no_declare=True) for name in QUEUE_NAMES]


def list_routes() -> dict[str, dict[str, str]]:
    """Return Celery's routes: the middle part of a task's name is its queue."""
    return {task_name(name, "*"): {"queue": name} for name in QUEUE_NAMES}
