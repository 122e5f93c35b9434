"""Stop: stop the machines of slots that enter the stopped tier of their pool."""

from collections.abc import Sequence

from scheduler.operations.machines.power import call_cloud, give_up, list_due, note_called, put_off
from scheduler.operations.ports import Ports
from scheduler.ports import CloudError


def stop_all(ports: Ports, wanted: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Stop the machines of these slots, given as (slot, epoch), by few calls of the cloud. Return the outcome for each
    slot as one word.

    A machine that the cloud refuses to stop is terminated. After an unclear error the call is repeated with growing
    delays; `terminating_timeout` limits the time.
    """
    slots, outcomes = list_due(ports, wanted, "stop")
    try:
        done, refused = call_cloud(ports.fleet.stop, slots)
    except CloudError as error:
        put_off(ports, slots)
        return outcomes | {slot.id: error.category for slot in slots}
    note_called(ports, done)
    give_up(ports, slots, refused, "stopped")
    return outcomes | {slot.id: "asked" for slot in done} | {name: error.category for name, error in refused.items()}
