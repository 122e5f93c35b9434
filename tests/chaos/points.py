"""Named points in processes at which the nemesis can kill or stop them.

The product has no code for this: a chaos worker wraps the functions. A process that reaches a point takes the order
for this point from the folder, if there is one, and kills or stops itself. An order is taken by one process only.
"""

import os
import signal
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Final, Literal, get_args

from scheduler.model.slots import Slot

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
]
RestorePoint = Literal["after_put_back", "after_jump", "before_machines"]
Order = Literal["kill", "stop"]
POINTS: Final[tuple[Point, ...]] = get_args(Point)
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


def withdraw_orders(folder: Path) -> None:
    """Delete the orders that no process took."""
    for point in POINTS:
        (folder / point).unlink(missing_ok=True)


def find_takers(folder: Path, point: Point, order: Order) -> list[int]:
    """Return the process ids that have carried out such an order."""
    taken = folder.glob(f"{point}.[0-9]*")
    return [int(file.suffix[1:]) for file in taken if file.read_text() == order]


def pass_by(folder: Path, point: Point | RestorePoint) -> None:
    """Carry out the order for this point, if there is one. A kill ends the whole process group."""
    mine = folder / f"{point}.{os.getpid()}"
    try:
        (folder / point).rename(mine)
    except FileNotFoundError:
        return
    if mine.read_text() == "kill":
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGSTOP)


def place_points(folder: Path) -> None:
    """Wrap the functions of this process that have a named point."""
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
    _wrap(Ec2Fleet, "launch", after=at("after_launch"))
    _wrap(Ec2Fleet, "launch_batch", after=at("after_launch"))
    _wrap(Ec2Fleet, "terminate", after=at("after_terminate"))
    _wrap(tick, "commit", before=at("between_plan_and_commit"), when=lambda _store, decisions, *_: bool(decisions))


def place_restore_points(folder: Path) -> None:
    """Wrap the functions of a restore that have a named point."""
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


def _has_messages(_dispatcher: object, slots: Sequence[Slot]) -> bool:
    return bool(slots)


def _wrap(
    owner: Any,
    name: str,
    *,
    before: Callable[[], None] = lambda: None,
    after: Callable[[], None] = lambda: None,
    when: Callable[..., bool] = lambda *_: True,
) -> None:
    inner = getattr(owner, name)

    @wraps(inner)
    def passing(*args: Any, **kwargs: Any) -> Any:
        if when(*args):
            before()
        found = inner(*args, **kwargs)
        after()
        return found

    setattr(owner, name, passing)
