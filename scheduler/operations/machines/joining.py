"""Give the agent of a launched machine the identity of its slot: a principal of the role `host` with the name of the
slot, whose key counts for this machine only.

A machine proves its identity by a request to AWS STS (`join`), or in a pool without an instance profile by the token of
its launch (`join_by_token`), which a launch request gets when it is sent (`add_join_token`).
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from scheduler.model.events import Event
from scheduler.model.principals import WORKER
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import WITH_MACHINE
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.ports import Store, StoredAnswer, StoredPrincipal, Transaction
from scheduler.ports.fleet import JOIN_TOKEN
from scheduler.protocol.join_tokens import TOKEN_SECONDS, hash_join_token, is_join_token, make_join_token
from scheduler.protocol.signing import make_key, read_key

JOINED = "host_joined"
"""Name of the event that records which machine got the key of a slot."""
JOIN_REFUSED = "host_join_refused"
"""Name of the event that records that a proof or a token of a machine was used a second time."""
KEPT_SECONDS: Final = 2 * TOKEN_SECONDS
"""Seconds for which the hashes of used proofs and tokens are kept at least. Each counts for a shorter time."""
JOIN: Final = "join"
"""Key in a stored launch request of a pool whose machines join by a token. Its value is the id of the launch (`launch`)
and the hash of the token (`sha256`).
"""


class Identity(NamedTuple):
    """What an agent gets: its slot and pool, the id of its instance, and the key of the slot's principal."""

    slot: str
    pool: str
    machine: str
    key: str


def join(store: Store, rules: Rules, machine: str, signature: str) -> Identity:
    """Return the identity of the slot that has the machine (an instance id). The keys of earlier agents of the slot no
    longer count. `signature`: that of the proof, which counts once.

    Raises CommandRefused if no slot of a pool with agents has the machine, if the proof was used before, or if a
    principal with another role has the name of the slot.
    """
    copied = CommandRefused("headers.authorization", "a proof that was not used before", "a copy", "conflict")
    return _join(store, rules, machine, signature, copied)


def join_by_token(store: Store, rules: Rules, machine: str, token: str) -> Identity:
    """Return the identity of the slot that has the machine, as `join` does. `token`: that of its launch. Each machine
    of the launch can use it once, within TOKEN_SECONDS of the launch.

    Raises CommandRefused as `join` does, and for a pool with an instance profile, the token of another launch, and one
    that is too old.
    """
    slot = next((each for each in store.find_slots_of_machines([machine]) if _has_agent(each, machine, rules)), None)
    if slot is None:
        raise _refuse_unknown(machine)
    if not rules.pools[slot.pool].joins_by_token:
        raise CommandRefused("token", "the proof of the pool's instance profile", "a token", "forbidden")
    cluster, launch = store.read_cluster(), name_launch(slot)
    keys = _find_worker_keys(store, cluster.now)
    if not any(is_join_token(key, cluster.identity, launch, token) for key in keys):  # promise: token-of-launch
        raise CommandRefused("token", "the token of the launch of this machine", "another one", "forbidden")
    age = None if slot.launched_at is None else cluster.now - slot.launched_at
    if age is None or abs(age) > TOKEN_SECONDS:
        got = "unknown" if age is None else f"{age:.0f} s after it"
        raise CommandRefused("token", f"a time within {TOKEN_SECONDS:.0f} s of the launch", got, "forbidden")
    used = CommandRefused("token", "a token that this machine has not used before", "a used one", "conflict")
    return _join(store, rules, machine, f"{token}:{machine}", used)


def _join(store: Store, rules: Rules, machine: str, proof: str, used: CommandRefused) -> Identity:
    """Return the identity of the slot that has the machine. `proof`: the text that counts once. `used`: the refusal of
    one that was used before.
    """
    found = _give_key(store, rules, machine, f"join-{hashlib.sha256(proof.encode()).hexdigest()}")
    if found is None:
        raise used
    return found


@repeated_if_overtaken
def _give_key(store: Store, rules: Rules, machine: str, proof: str) -> Identity | None:
    """Give the slot that has the machine a principal with a new key. Return None if the proof was used before, and
    record that.
    """
    found = store.find_slots_of_machines([machine])
    with store.transaction() as transaction:
        rows = transaction.load_slots([slot.id for slot in found]).values()
        slot = next((each for each in rows if _has_agent(each, machine, rules)), None)
        if slot is None:
            raise _refuse_unknown(machine)
        now = transaction.now()
        event = Event(
            at=now, name=JOINED, cause="cloud", slot=slot.id, detail={"machine": machine, "epoch": slot.epoch}
        )
        if transaction.find_answers([proof]):  # promise: proof-once
            _note_refusal(transaction, msgspec.structs.replace(event, name=JOIN_REFUSED), proof)
            return None
        known = transaction.load_principals().get(slot.id)
        if known is not None and known.role != "host":
            raise CommandRefused("slot", f"no principal {slot.id} with the role {known.role}", slot.id, "conflict")
        principal = StoredPrincipal(name=slot.id, role="host", key=make_key(), created_at=now, machine=machine)
        transaction.save_answers([StoredAnswer(proof, now, {"ok": True})])
        transaction.save_principals([principal])
        transaction.append_events([event])
    return Identity(slot.id, slot.pool, machine, principal.key)


def find_forgotten(now: float, keep_seconds: float) -> float:
    """Return the time before which stored answers are deleted. `keep_seconds`: for how long the settings keep them.
    A proof or a token that still counts must not be forgotten.
    """
    return now - max(keep_seconds, KEPT_SECONDS)  # promise: proof-kept


def _note_refusal(transaction: Transaction, event: Event, proof: str) -> None:
    """Append this event once for each proof: its sender may repeat the request as often as it likes."""
    noted = f"{proof}-refused"
    if not transaction.find_answers([noted]):
        transaction.save_answers([StoredAnswer(noted, event.at, {"ok": False})])
        transaction.append_events([event])


def describe_join(store: Store, rules: Rules, slot: Slot) -> dict[str, Any]:
    """Return what the stored launch request of this slot needs for the token of the launch; {} if the machines of its
    pool do not join by a token.
    """
    pool = rules.pools.get(slot.pool)
    if pool is None or not pool.joins_by_token:
        return {}
    launch = name_launch(slot)
    # promise: token-not-stored
    return {JOIN: {"launch": launch, "sha256": hash_join_token(_make_tokens(store, launch)[0])}}


def add_join_token(store: Store, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a stored launch request as it is sent: with the token of the launch, if the request needs one. A repeated
    request has the token of the first one, also if the key of the workers was rotated since.
    """
    join = request.get(JOIN)
    if join is None:
        return request
    tokens = _make_tokens(store, join["launch"])
    return {
        **request,
        JOIN_TOKEN: next((each for each in tokens if hash_join_token(each) == join["sha256"]), tokens[0]),
    }


def name_launch(slot: Slot) -> str:
    """Return the id of the launch request of a slot: that of the batch, or that of the launch. A slot that adopted a
    machine of a batch has the id of the batch as its launch.
    """
    return slot.batch or slot.launch_id or ""


def _make_tokens(store: Store, launch: str) -> list[str]:
    cluster = store.read_cluster()
    return [make_join_token(key, cluster.identity, launch) for key in _find_worker_keys(store, cluster.now)]


def _find_worker_keys(store: Store, now: float) -> list[bytes]:
    """Return the valid keys of the workers, the present one first."""
    worker = next(each for each in store.find_principals() if each.name == WORKER)
    return [read_key(key) for key in worker.list_keys(now)]


def _refuse_unknown(machine: str) -> CommandRefused:
    return CommandRefused("machine", "a machine in a pool with `agent = true`", machine, "unknown")


def _has_agent(slot: Slot, machine: str, rules: Rules) -> bool:
    pool = rules.pools.get(slot.pool)
    return pool is not None and pool.agent and slot.instance_id == machine and slot.state in WITH_MACHINE
