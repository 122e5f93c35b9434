"""Apply: make a document the rules in force, and give each pool the slots that it lists."""

from collections.abc import Mapping
from typing import Any

from scheduler.model.events import Event
from scheduler.model.moves import Cause
from scheduler.model.rules import Rules, read_rules, slot_ids
from scheduler.model.slots import Slot
from scheduler.operations.engine import Engine, announce
from scheduler.operations.ledger import Ledger
from scheduler.operations.repeating import repeated_if_overtaken
from scheduler.ports import Transaction


@repeated_if_overtaken
def apply_rules(
    engine: Engine, document: Mapping[str, Any], *, prefix: str = "", cause: Cause = "operator"
) -> tuple[int, bool]:
    """Check the document, write it and make the slots of its pools; (version, whether anything changed).

    The same document again changes nothing. Raises InvalidInputError, with nothing written.
    """
    rules = read_rules(dict(document), prefix)
    with engine.store.transaction() as transaction:
        stored = transaction.load_rules()
        if stored.version and stored.document == document:
            return stored.version, False
        version = transaction.save_rules(document, stored.version)
        ledger = Ledger(transaction, cause)
        fit_slots(ledger, transaction, rules)
        ledger.tell(Event(at=ledger.now, name="rules_changed", cause=cause, detail={"version": version}))
        outcome = ledger.flush()
    announce(engine, outcome, kick=True)
    return version, True


def fit_slots(ledger: Ledger, transaction: Transaction, rules: Rules) -> None:
    """Each ec2 pool has the slots `POOL-1` … `POOL-max_slots`; empty ones beyond that, or of a pool that is no
    longer listed, go, and others stay until they are empty.
    """
    wanted = {slot: name for name, pool in rules.pools.items() for slot in slot_ids(name, pool)}
    present = {slot.id: slot for slot in transaction.load_all_slots()}
    for slot_id, pool in wanted.items():
        if slot_id not in present:
            ledger.put(Slot(id=slot_id, pool=pool, since=ledger.now))
    for slot in present.values():
        listed = rules.pools.get(slot.pool)
        if slot.state == "empty" and slot.id not in wanted and (listed is None or listed.is_elastic):
            ledger.delete(slot)
