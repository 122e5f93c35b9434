"""Queue `terminate`: ends machines. A queue of its own, so that nothing that costs money waits behind launches."""

from scheduler.operations.machines.terminate import terminate
from tasks.app import app, services
from tasks.queues import TERMINATE_SLOT
from workers.logs import get_logger

log = get_logger(__name__)


@app.task(name=TERMINATE_SLOT)
def terminate_slot(slot_id: str, epoch: int) -> str:
    """End the machine that this slot has in this epoch, and in no other."""
    result = terminate(services.ports, slot_id, epoch)
    sentence = "Asked for the end of a machine." if result == "asked" else "Asked for no end of a machine."
    log.info(sentence, action=f"terminate.{result}", slot=slot_id, epoch=epoch)
    return result
