"""Queue `terminate`: ends machines. It is a queue of its own, so that no termination waits behind launches."""

from scheduler.operations.machines.terminate import terminate
from tasks.app import app, services
from tasks.queues import TERMINATE_SLOT
from workers.logs import get_logger

log = get_logger(__name__)


@app.task(name=TERMINATE_SLOT)
def terminate_slot(slot_id: str, epoch: int) -> str:
    """End the machine that this slot has in this epoch, and in no other."""
    result = terminate(services.ports, slot_id, epoch)
    sentence = "The end of a machine was requested." if result == "asked" else "No machine had to be ended."
    log.info(sentence, action=f"terminate.{result}", slot=slot_id, epoch=epoch)
    return result
