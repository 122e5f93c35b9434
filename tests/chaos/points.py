"""Named points in processes at which the nemesis can kill or stop them.

The product has no code for this: a chaos worker wraps the functions. A process that reaches a point takes the order
for this point from the folder, if there is one, and kills or stops itself. An order is taken by one process only.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Final, Literal, get_args

from scheduler.model.slots import Slot
from scheduler.operations.unit_of_work import UnitOfWork

BatchPoint = Literal[
    "before_batch_stored", "before_batch_call", "after_batch_call", "within_partial_answer", "after_batch_recorded"
]
PowerPoint = Literal[
    "before_power_sent",
    "before_start_call",
    "after_start_call",
    "after_resize_call",
    "before_stop_call",
    "after_stop_call",
]
ListPoint = Literal["before_list_terminated", "after_list_terminated"]
Point = Literal[
    "before_commit",
    "after_commit",
    "before_publish",
    "before_dispatch",
    "before_launches",
    "before_terminations",
    "after_launch",
    "after_terminate",
    "between_plan_and_commit",
    BatchPoint,
    PowerPoint,
    ListPoint,
]
RestorePoint = Literal["after_put_back", "after_jump", "before_machines"]
Order = Literal["kill", "stop"]
BATCH_POINTS: Final[tuple[Point, ...]] = get_args(BatchPoint)
"""Points of a launch of several machines by one request: before the request is stored, before and after the call,
within the transaction that records an answer with too few machines, and after that of any answer.
"""
LIST_POINTS: Final[tuple[Point, ...]] = get_args(ListPoint)
"""Points before and after a call that terminates several machines."""
POINTS: Final[tuple[Point, ...]] = get_args(Point)
_STRUCK: Final = "struck"
"""File with a line for each order that a process carried out."""
RESTORE_POINTS: Final[tuple[RestorePoint, ...]] = get_args(RestorePoint)
"""Points of `leasehold restore`: after the older state is in place, after term and token were raised, and before the
machines are settled.
"""


def give_order(folder: Path, point: Point | RestorePoint, order: Order) -> None:
    """Order the next process that reaches this point to kill itself, or to stop until SIGCONT."""
    folder.mkdir(exist_ok=True)
    # A rename is atomic: a process never reads an empty order.
    unfinished = folder / f"{point}.unfinished"
    unfinished.write_text(order)
    unfinished.rename(folder / point)


def withdraw_orders(folder: Path, points: Sequence[Point] = POINTS) -> None:
    """Delete the orders for these points that no process took."""
    for point in points:
        (folder / point).unlink(missing_ok=True)


def note_ready(folder: Path) -> None:
    """Note that this process takes messages now."""
    (folder / f"ready.{os.getpid()}").touch()


def is_ready(folder: Path, pid: int) -> bool:
    """Return whether the process with this id takes messages, or did before it ended."""
    return (folder / f"ready.{pid}").exists()


def find_takers(folder: Path, point: Point, order: Order) -> list[int]:
    """Return the process ids that have carried out such an order."""
    taken = folder.glob(f"{point}.[0-9]*")
    return [int(file.suffix[1:]) for file in taken if file.read_text() == order]


def count_struck(folder: Path) -> Counter[str]:
    """Return how often processes carried out each order: `ORDER POINT` -> number."""
    file = folder / _STRUCK
    return Counter(file.read_text().splitlines() if file.exists() else ())


def pass_by(folder: Path, point: Point | RestorePoint) -> None:
    """Carry out the order for this point, if there is one. A kill ends the whole process group."""
    mine = folder / f"{point}.{os.getpid()}"
    try:
        (folder / point).rename(mine)
    except FileNotFoundError:
        return
    order = mine.read_text()
    with (folder / _STRUCK).open("ab", buffering=0) as struck:
        struck.write(f"{order} {point}\n".encode())
    if order == "kill":
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGSTOP)


def place_points(folder: Path) -> None:
    """Wrap the functions of this process that have a named point."""
    from scheduler.operations.machines import launch
    from scheduler.operations.tick import tick
    from scheduler.store import session
    from scheduler.view.redis_view_cache import RedisViewCache
    from tasks.dispatch import CeleryDispatcher
    from workers.ec2.fleet import Ec2Fleet

    at = _make_passers(folder)
    _wrap(session, "_commit", before=at("before_commit"), after=at("after_commit"))
    _wrap(RedisViewCache, "publish", before=at("before_publish"))
    _wrap(CeleryDispatcher, "_send", before=at("before_dispatch"))
    _wrap(CeleryDispatcher, "send_launches", before=at("before_launches"), when=_has_messages)
    _wrap(CeleryDispatcher, "send_terminations", before=at("before_terminations"), when=_has_messages)
    _wrap(CeleryDispatcher, "send_power", before=at("before_power_sent"), when=_has_messages)
    _wrap(Ec2Fleet, "launch", after=at("after_launch"), when=lambda _fleet, request: not _asks_for_batch(request))
    _wrap(Ec2Fleet, "terminate", after=at("after_terminate"))
    _wrap(launch, "_freeze", before=at("before_batch_stored"), when=lambda *_, is_batch: is_batch)
    calls = {"before": at("before_batch_call"), "after": at("after_batch_call")}
    _wrap(Ec2Fleet, "launch", **calls, when=lambda _fleet, request: _asks_for_batch(request))
    _wrap(launch, "_refuse", before=at("within_partial_answer"), when=_is_partial)
    _wrap(
        launch,
        "_record",
        after=at("after_batch_recorded"),
        when=lambda *given: _asks_for_batch(given[2].launch_request),
    )
    _wrap(Ec2Fleet, "start", before=at("before_start_call"), after=at("after_start_call"))
    _wrap(Ec2Fleet, "resize", after=at("after_resize_call"))
    _wrap(Ec2Fleet, "stop", before=at("before_stop_call"), after=at("after_stop_call"))
    listed = {"before": at("before_list_terminated"), "after": at("after_list_terminated")}
    _wrap(Ec2Fleet, "terminate", **listed, when=_has_several)
    _wrap(tick, "commit", before=at("between_plan_and_commit"), when=lambda _store, decisions, *_: bool(decisions))


def place_restore_points(folder: Path) -> None:
    from scheduler.operations import restore
    from scheduler.store import backup

    at = _make_passers(folder)
    _wrap(backup, "put_back", after=at("after_put_back"))
    _wrap(restore, "_jump", after=at("after_jump"))
    _wrap(restore, "_settle_machines", before=at("before_machines"))


def _make_passers(folder: Path) -> Callable[[Point | RestorePoint], Callable[[], None]]:
    def at(point: Point | RestorePoint) -> Callable[[], None]:
        return lambda: pass_by(folder, point)

    return at


def _asks_for_batch(request: Mapping[str, Any] | None) -> bool:
    return bool(request and request.get("batch"))


def _has_messages(_dispatcher: object, slots: Sequence[Slot]) -> bool:
    return bool(slots)


def _has_several(_fleet: object, machines: Sequence[str]) -> bool:
    return len(machines) > 1


def _is_partial(work: UnitOfWork, _pool: object, _first: Slot, slots: Sequence[Slot], _refusals: object) -> bool:
    """Return whether the answer that is being recorded has a machine for some of the slots only."""
    return bool(slots) and any(slot.instance_id is not None for slot in work.slots.values())


def _wrap(
    owner: Any,
    name: str,
    *,
    before: Callable[[], None] = lambda: None,
    after: Callable[[], None] = lambda: None,
    when: Callable[..., bool] = lambda *_, **__: True,
) -> None:
    inner = getattr(owner, name)

    @wraps(inner)
    def passing(*args: Any, **kwargs: Any) -> Any:
        is_meant = when(*args, **kwargs)
        if is_meant:
            before()
        found = inner(*args, **kwargs)
        if is_meant:
            after()
        return found

    setattr(owner, name, passing)
