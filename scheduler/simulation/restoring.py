"""Restore: what given reservations have been through, and holds, laid over the rows as they were set up."""

import msgspec

from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.operations.ports import announce
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.initial_state import LIVED, GivenHold, list_said
from scheduler.simulation.scenario import Scenario


def restore(stage: SimulatedCluster, scenario: Scenario) -> None:
    """Let holds exist, and lay over each reservation what its record says of its past, if any says something."""
    lived = {each.id: said for each in scenario.reservations if (said := list_said(each, LIVED))}
    if not (lived or scenario.holds):
        return
    with stage.store.transaction() as transaction:
        work = UnitOfWork(transaction, "operator")
        work.load(reservations=lived)
        for name, said in lived.items():
            if name in work.reservations:
                work.put(msgspec.structs.replace(work.reservations[name], **said))
        for given in scenario.holds:
            work.put(_make_hold(given))
        change_set = work.flush()
    announce(stage.ports, change_set, kick=False)


def _make_hold(given: GivenHold) -> Hold:
    return Hold(
        id=hold_id(given.pool, given.kind, given.subject if given.kind != "unhealthy" else ""), **given.model_dump()
    )
