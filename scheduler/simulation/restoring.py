"""Adds the holds of a scenario, and the history of its reservations, to the rows of a simulation."""

import msgspec

from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.operations.ports import announce
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.initial_state import RESERVATION_HISTORY, GivenHold, list_given
from scheduler.simulation.scenario import Scenario


def restore(cluster: SimulatedCluster, scenario: Scenario) -> None:
    """Insert the scenario's holds, and set the fields of the reservations' history that their records contain."""
    history = {each.id: found for each in scenario.reservations if (found := list_given(each, RESERVATION_HISTORY))}
    if not (history or scenario.holds):
        return
    with cluster.store.transaction() as transaction:
        work = UnitOfWork(transaction, "operator")
        work.load(reservations=history)
        for name, fields in history.items():
            if name in work.reservations:
                work.put(msgspec.structs.replace(work.reservations[name], **fields))
        for given in scenario.holds:
            work.put(_make_hold(given))
        change_set = work.flush()
    announce(cluster.ports, change_set, kick=False)


def _make_hold(given: GivenHold) -> Hold:
    return Hold(
        id=hold_id(given.pool, given.kind, given.subject if given.kind != "unhealthy" else ""), **given.model_dump()
    )
