"""What becomes of a machine without anybody's word: the cloud takes it, after a notice or without one."""

from collections.abc import Callable

from scheduler.model.slots import Slot
from scheduler.operations import words
from scheduler.operations.check import check
from scheduler.operations.ledger import Ledger
from scheduler.operations.words import Refusal
from scheduler.simulation.stage import Stage


def heed(act: Callable[[Ledger], object]) -> Callable[[Ledger], None]:
    """The same, with words that cannot be heeded passed over: nothing changes then."""

    def attempt(ledger: Ledger) -> None:
        try:
            act(ledger)
        except Refusal:
            return

    return attempt


def interrupt_slot(stage: Stage, name: str, deadline: float) -> None:
    """The notice now; at its deadline (seconds from now) the machine is gone."""
    gone_at = stage.agenda.now + deadline
    stage.change(heed(lambda ledger: words.interrupt(ledger, name, gone_at)), lambda ledger: ledger.load(slots=[name]))
    slot = stage.find_slot(name)
    if slot is None or slot.interrupted_by is None:
        return
    epoch = slot.epoch
    stage.agenda.note(slot.interrupted_by, lambda: _reclaim(stage, name, epoch))


def _reclaim(stage: Stage, name: str, epoch: int) -> None:
    slot = stage.find_slot(name)
    if slot is not None and slot.epoch == epoch:
        lose_slot(stage, name)


def lose_slot(stage: Stage, name: str) -> None:
    """Its machine is gone."""
    slot: Slot | None = stage.find_slot(name)
    if slot is not None and slot.instance_id:
        stage.cloud.end(slot.instance_id, stage.agenda.now)
        check(stage.engine, [name])
    else:
        stage.change(heed(lambda ledger: words.lose(ledger, name)), lambda ledger: ledger.load(slots=[name]))
