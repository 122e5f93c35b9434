"""Named points in our processes at which the nemesis has them die or stand still.

The product knows nothing of this: a chaos worker wraps what it calls. Who passes a point while an order for it lies
in the folder takes the order and carries it out on itself; nobody else gets it.
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
"""In the process of a restore: the older state is in place, numbers have jumped, reservations are settled."""


def give_order(folder: Path, point: Point | RestorePoint, order: Order) -> None:
    """Have the next process that passes this point kill itself, or stop until it is sent SIGCONT."""
    folder.mkdir(exist_ok=True)
    draft = folder / f"{point}.draft"
    draft.write_text(order)
    draft.rename(folder / point)


def withdraw_orders(folder: Path) -> None:
    """Delete the orders that no process took."""
    for point in POINTS:
        (folder / point).unlink(missing_ok=True)


def find_takers(folder: Path, point: Point, order: Order) -> list[int]:
    """The processes that carried out such an order so far."""
    taken = folder.glob(f"{point}.[0-9]*")
    return [int(file.suffix[1:]) for file in taken if file.read_text() == order]


def pass_by(folder: Path, point: Point | RestorePoint) -> None:
    """Carry out the order for this point, if there is one: a kill takes the whole group of the process with it."""
    mine = folder / f"{point}.{os.getpid()}"
    try:
        (folder / point).rename(mine)
    except FileNotFoundError:
        return
    if mine.read_text() == "kill":
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGSTOP)


def place_points(folder: Path) -> None:
    """Put the points into the code that this process is about to run."""
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
    _wrap(Ec2Fleet, "terminate", after=at("after_terminate"))
    _wrap(tick, "commit", before=at("between_plan_and_commit"), when=lambda _store, decisions, *_: bool(decisions))


def place_restore_points(folder: Path) -> None:
    """Put the points of a restore into the code that this process is about to run."""
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
