"""Queue `launch`: launches machines on EC2. In threads, because a call may take up to a minute."""

from scheduler.operations.machines.launch import launch
from tasks.app import app, services
from tasks.queues import LAUNCH_SLOT
from workers.logs import get_logger

log = get_logger(__name__)


@app.task(name=LAUNCH_SLOT)
def launch_slot(slot_id: str, launch_id: str) -> str:
    """Carry out the launch that was decided for this slot, if it is still wanted."""
    result = launch(services.ports, slot_id, launch_id)
    log.info("Launched." if result == "success" else "Not launched.", action=f"launch.{result}", slot=slot_id)
    return result
