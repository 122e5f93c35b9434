"""The naive tick: the steps in the order of the autoscaler's tick, written from the sources and from nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.model.rules import Rules
from scheduler.model.view import Row
from tests.reference_model.budgeting import save
from tests.reference_model.healing import expire, heal
from tests.reference_model.holding import History
from tests.reference_model.keeping import Imagined, keep_minimum, keep_warm, release, shrink
from tests.reference_model.picture import Picture
from tests.reference_model.placing import Pass, sort_queue
from tests.reference_model.replacing import replace
from tests.reference_model.sharing import share
from tests.reference_model.starting import start_for_reserve
from tests.reference_model.stopping import keep_tier


@dataclass(frozen=True)
class Reported:
    """The decisions of a tick in order, and the waits with their codes in queue order; a line of text each."""

    decisions: list[str]
    waiting: list[str]


def tick(rows: Sequence[Row], rules: Rules, now: float, history: History = ()) -> Reported:
    """Rule: "Always in this order: expire, heal, order and place, launch for demand, minimum, warm, idle."

    Then machines are replaced, and unneeded slots drain at quota; where `max_slots` withholds launches, none is made
    for `minimum` or `warm`, and where EC2's quota or a budget does, none for `warm` or the stopped tier. Last, the
    spare cores of each slot are shared.
    """
    picture = Picture(rows, rules, now, history)
    expire(picture)
    heal(picture)
    queue = sort_queue(picture, picture.list_in("pending"))
    placing = Pass(picture)
    placing.run(queue)
    let_go(picture, placing)
    share(picture)
    return Reported(picture.decisions, [f"{each.id} {code}" for each in queue if (code := picture.waits.get(each.id))])


def let_go(picture: Picture, placing: Pass) -> None:
    """Launches to keep each pool's minimum and reserve; then idle slots, machines at the end of their life and
    unneeded slots drain.
    """
    imagined = Imagined(placing)
    elastic = [name for name, pool in picture.rules.pools.items() if pool.provider == "ec2"]
    beyond, spared = {name: imagined.count_beyond(name) for name in elastic}, imagined.list_spared()
    closed = {name for name in elastic if beyond[name]} | placing.closed
    rooms = {name: imagined.count_expected(name) for name in elastic}
    for name in elastic:
        if not beyond[name]:
            keep_minimum(picture, name, start_for_reserve, rooms[name])
    for name in elastic:
        if name not in closed:
            keep_warm(picture, name, start_for_reserve, rooms[name])
    kept = {name: imagined.list_kept(name, spared) for name in elastic}
    to_stop = {name: keep_tier(picture, name, kept[name], None if name in closed else rooms[name]) for name in elastic}
    for name in elastic:
        shrink(picture, name, to_stop[name], kept[name])
    for name in elastic:
        replace(picture, name)
    for name in elastic:
        release(picture, name, imagined, spared)
    save(picture)
