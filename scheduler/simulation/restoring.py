"""Restore: what given reservations have been through, and holds, laid over the rows as they were set up."""

import msgspec

from scheduler.model.holds import Hold, hold_id
from scheduler.operations.engine import announce
from scheduler.operations.ledger import Ledger
from scheduler.simulation.given import LIVED, GivenHold, list_said
from scheduler.simulation.scenario import Scenario
from scheduler.simulation.stage import Stage


def restore(stage: Stage, scenario: Scenario) -> None:
    """Let holds exist, and lay over each reservation what its record says of its past, if any says something."""
    lived = {each.id: said for each in scenario.reservations if (said := list_said(each, LIVED))}
    if not (lived or scenario.holds):
        return
    with stage.store.transaction() as transaction:
        ledger = Ledger(transaction, "operator")
        ledger.load(reservations=lived)
        for name, said in lived.items():
            if name in ledger.reservations:
                ledger.put(msgspec.structs.replace(ledger.reservations[name], **said))
        for given in scenario.holds:
            ledger.put(_make_hold(given))
        outcome = ledger.flush()
    announce(stage.engine, outcome, kick=False)


def _make_hold(given: GivenHold) -> Hold:
    return Hold(id=hold_id(given.pool, given.kind, given.subject if given.kind != "unhealthy" else ""), **dict(given))
