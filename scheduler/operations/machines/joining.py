"""Give the agent of a launched machine the identity of its slot: a principal of the role `host` with the name of the
slot, whose key counts for this machine only.
"""

import hashlib
from typing import NamedTuple

from scheduler.model.events import Event
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import WITH_MACHINE
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.ports import Store, StoredAnswer, StoredPrincipal
from scheduler.protocol.signing import make_key

JOINED = "host_joined"
"""Name of the event that records which machine got the key of a slot."""


class Identity(NamedTuple):
    """What an agent gets: its slot and pool, the id of its instance, and the key of the slot's principal."""

    slot: str
    pool: str
    machine: str
    key: str


@repeated_if_overtaken
def join(store: Store, rules: Rules, machine: str, signature: str) -> Identity:
    """Return the identity of the slot that has the machine (an instance id). The keys of earlier agents of the slot no
    longer count. `signature`: that of the proof, which counts once.

    Raises CommandRefused if no slot of a pool with agents has the machine, if the proof was used before, or if a
    principal with another role has the name of the slot.
    """
    found = store.find_slots_of_machines([machine])
    with store.transaction() as transaction:
        rows = transaction.load_slots([slot.id for slot in found]).values()
        slot = next((each for each in rows if _has_agent(each, machine, rules)), None)
        if slot is None:
            raise CommandRefused("machine", "a machine in a pool with `agent = true`", machine, "unknown")
        proof = f"join-{hashlib.sha256(signature.encode()).hexdigest()}"
        if transaction.find_answers([proof]):  # promise: proof-once
            raise CommandRefused("headers.authorization", "a proof that was not used before", "a copy", "conflict")
        known = transaction.load_principals().get(slot.id)
        if known is not None and known.role != "host":
            raise CommandRefused("slot", f"no principal {slot.id} with the role {known.role}", slot.id, "conflict")
        now = transaction.now()
        principal = StoredPrincipal(name=slot.id, role="host", key=make_key(), created_at=now, machine=machine)
        transaction.save_answers([StoredAnswer(proof, now, {"ok": True})])
        transaction.save_principals([principal])
        transaction.append_events(
            [Event(at=now, name=JOINED, cause="cloud", slot=slot.id, detail={"machine": machine, "epoch": slot.epoch})]
        )
    return Identity(slot.id, slot.pool, machine, principal.key)


def _has_agent(slot: Slot, machine: str, rules: Rules) -> bool:
    pool = rules.pools.get(slot.pool)
    return pool is not None and pool.agent and slot.instance_id == machine and slot.state in WITH_MACHINE
