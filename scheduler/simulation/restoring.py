"""Restore: what given slots and reservations have been through, and holds, laid over the rows as they were set up."""

from collections.abc import Iterable
from typing import Any

import msgspec

from scheduler.model.holds import Hold, hold_id
from scheduler.model.validation import Document
from scheduler.operations.engine import announce
from scheduler.operations.ledger import Ledger
from scheduler.simulation.given import LIVED, WORN, GivenHold
from scheduler.simulation.scenario import Scenario
from scheduler.simulation.stage import Stage


def restore(stage: Stage, scenario: Scenario) -> None:
    """Let holds exist, and lay over each row what its record says of its past; nothing where none says anything."""
    lived = {each.id: said for each in scenario.reservations if (said := _list_said(each, LIVED))}
    worn = {each.id: said for each in scenario.slots if (said := _list_said(each, WORN))}
    if not (lived or worn or scenario.holds):
        return
    with stage.store.transaction() as transaction:
        ledger = Ledger(transaction, "operator")
        ledger.load(reservations=lived, slots=worn)
        for name, said in lived.items():
            if name in ledger.reservations:
                ledger.put(msgspec.structs.replace(ledger.reservations[name], **said))
        for name, said in worn.items():
            ledger.put(msgspec.structs.replace(ledger.slots[name], **said))
        for given in scenario.holds:
            ledger.put(_make_hold(given))
        outcome = ledger.flush()
    announce(stage.engine, outcome, kick=False)


def _list_said(record: Document, names: Iterable[str]) -> dict[str, Any]:
    """Of these fields those that the record says, with what it says; `uses` that are null say nothing."""
    said = {name: getattr(record, name) for name in names if name in record.model_fields_set}
    return {name: value for name, value in said.items() if (name, value) != ("uses", None)}


def _make_hold(given: GivenHold) -> Hold:
    return Hold(id=hold_id(given.pool, given.kind, given.subject if given.kind != "unhealthy" else ""), **dict(given))
