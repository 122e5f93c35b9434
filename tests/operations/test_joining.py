"""A launched machine gets the key of its slot by its proof or by the token of its launch, and acts with it for itself
only.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typing_extensions import override

from scheduler.model.principals import WORKER, Principal
from scheduler.model.slots import without_machine
from scheduler.operations.commands.intake import accept, check_question
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.machines.joining import JOIN_REFUSED, JOINED, Identity, find_forgotten, join, join_by_token
from scheduler.operations.machines.launch import launch
from scheduler.operations.principals import add_principal, rotate_principal
from scheduler.operations.rules.apply import apply_rules
from scheduler.ports import CloudError, LaunchAnswer, Store
from scheduler.ports.fleet import JOIN_TOKEN
from scheduler.protocol.join_tokens import TOKEN_LENGTH, TOKEN_SECONDS
from scheduler.store.opening import open_store
from tests.operations.harness import CONFIG, CountingFleet, Harness
from tests.operations.test_launched_hosts import a_harness, check_machines
from tests.operations.test_races import Open, open_one, race

__all__ = ["open_one"]

Join = Callable[[Harness], Identity]


class SeenFleet(CountingFleet):
    """A cloud that keeps the launch requests it got."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Mapping[str, Any]] = []

    @override
    def launch(self, request: Mapping[str, Any]) -> LaunchAnswer:
        self.seen.append(request)
        return super().launch(request)


def join_with(harness: Harness, machine: str = "i-1", signature: str = "s1") -> Identity:
    return join(harness.store, harness.ports.rules(), machine, signature)


def find_token(harness: Harness, number: int = 0) -> str:
    """Return the token that the cloud got in a launch request."""
    assert isinstance(harness.fleet, SeenFleet)
    return str(harness.fleet.seen[number][JOIN_TOKEN])


def join_with_token(harness: Harness, machine: str = "i-1", token: str | None = None) -> Identity:
    found = find_token(harness) if token is None else token
    return join_by_token(harness.store, harness.ports.rules(), machine, found)


@pytest.fixture(params=[join_with, join_with_token])
def join_once(request: pytest.FixtureRequest) -> Join:
    """Both ways to join: by a proof and by a token."""
    way: Join = request.param
    return way


def a_launched(**keys: Any) -> Harness:
    return a_harness(fleet=SeenFleet(), **keys)


def find_principal(harness: Harness, name: str = "linux-1") -> Principal:
    return next(each.principal for each in harness.store.find_principals() if each.name == name)


def register_as(harness: Harness, principal: Principal, **fields: Any) -> dict[str, Any]:
    document = {"request": f"{fields}", "slot": "linux-1", "pool": "linux", "machine": "i-1", "run": "a", **fields}
    return accept(harness.ports, "register", document, principal=principal)


def list_events(harness: Harness, name: str) -> list[tuple[str | None, object]]:
    return [(event.slot, event.detail["machine"]) for event in harness.events if event.name == name]


def test_a_machine_gets_the_slot_that_has_it(join_once: Join) -> None:
    harness = a_launched()
    identity = join_once(harness)
    assert identity[:3] == ("linux-1", "linux", "i-1")
    principal = find_principal(harness)
    assert (principal.role, principal.machine) == ("host", "i-1")
    assert list_events(harness, JOINED) == [("linux-1", "i-1")]
    assert register_as(harness, principal)["ok"]


def test_a_proof_counts_once() -> None:
    harness = a_harness()
    first = join_with(harness)
    with pytest.raises(CommandRefused, match="not used before"):
        join_with(harness)
    assert join_with(harness, signature="s2").key != first.key


def test_a_machine_uses_the_token_of_its_launch_once() -> None:
    harness = a_launched()
    key = join_with_token(harness).key
    for _ in range(3):
        with pytest.raises(CommandRefused, match="has not used before") as refused:
            join_with_token(harness)
        assert (refused.value.fault.path, refused.value.fault.code) == ("token", "conflict")
    # The key of the one that came first counts; an operator sees that another one came.
    assert next(each.key for each in harness.store.find_principals() if each.name == "linux-1") == key
    assert list_events(harness, JOIN_REFUSED) == [("linux-1", "i-1")]


def test_a_copy_of_a_proof_is_in_the_history() -> None:
    harness = a_harness()
    join_with(harness)
    with pytest.raises(CommandRefused):
        join_with(harness)
    assert list_events(harness, JOIN_REFUSED) == [("linux-1", "i-1")]


def a_batch() -> Harness:
    """Return a harness with a batch of two machines, and a third one of another launch."""
    harness = Harness(
        {"pools": {"linux": {**CONFIG["pools"]["linux"], "agent": True, "max_slots": 3}}}, fleet=SeenFleet()
    )
    for name in ("r1", "r2"):
        harness.submit(name)
    harness.tick()
    harness.play_tasks()
    harness.submit("r3")
    harness.tick()
    harness.play_tasks()
    assert [slot.instance_id for slot in harness.store.find_slots()] == ["i-1", "i-2", "i-3"]
    return harness


def test_all_machines_of_a_batch_have_one_token_and_each_uses_it_once() -> None:
    harness = a_batch()
    assert isinstance(harness.fleet, SeenFleet)
    assert [each["order"]["count"] for each in harness.fleet.seen] == [2, 1]
    assert join_with_token(harness, "i-1")[:3] == ("linux-1", "linux", "i-1")
    assert join_with_token(harness, "i-2")[:3] == ("linux-2", "linux", "i-2")
    for machine in ("i-1", "i-2"):
        with pytest.raises(CommandRefused, match="not used before"):
            join_with_token(harness, machine)


def test_a_machine_of_another_launch_is_refused() -> None:
    harness = a_batch()
    assert len({find_token(harness), find_token(harness, 1)}) == 2
    for machine, number in (("i-3", 0), ("i-1", 1)):
        with pytest.raises(CommandRefused, match="the token of the launch of this machine") as refused:
            join_with_token(harness, machine, find_token(harness, number))
        assert (refused.value.fault.path, refused.value.fault.code) == ("token", "forbidden")
    assert join_with_token(harness, "i-3", find_token(harness, 1)).slot == "linux-3"


def flip(token: str) -> str:
    return ("A" if token[0] != "A" else "B") + token[1:]


@pytest.mark.parametrize("change", [flip, lambda token: token[:-1], lambda token: token + "A", lambda _: ""])
def test_a_wrong_token_is_refused_and_uses_up_nothing(change: Callable[[str], str]) -> None:
    harness = a_launched()
    with pytest.raises(CommandRefused, match="the token of the launch of this machine"):
        join_with_token(harness, token=change(find_token(harness)))
    assert list_events(harness, JOINED) == []
    assert join_with_token(harness).slot == "linux-1"


def test_a_token_of_another_cluster_is_refused() -> None:
    harness, other = a_launched(), a_launched()
    with pytest.raises(CommandRefused, match="the token of the launch of this machine"):
        join_with_token(harness, token=find_token(other))


@pytest.mark.parametrize(
    ("seconds", "is_accepted"),
    [(TOKEN_SECONDS, True), (TOKEN_SECONDS + 1, False), (-TOKEN_SECONDS - 1, False)],  # the last one: a clock went back
)
def test_a_token_counts_for_fifteen_minutes(seconds: float, is_accepted: bool) -> None:
    harness = a_launched()
    harness.now = (harness.slot().launched_at or 0.0) + seconds
    if is_accepted:
        assert join_with_token(harness).slot == "linux-1"
        return
    with pytest.raises(CommandRefused, match=f"within {TOKEN_SECONDS:.0f} s of the launch") as refused:
        join_with_token(harness)
    assert (refused.value.fault.path, refused.value.fault.code) == ("token", "forbidden")
    assert list_events(harness, JOINED) == []


def test_a_used_token_is_remembered_for_as_long_as_it_counts_whatever_the_settings_keep() -> None:
    harness = a_launched()
    join_with_token(harness)
    harness.now = (harness.slot().launched_at or 0.0) + TOKEN_SECONDS
    harness.store.prune(events_before=0, requests_before=find_forgotten(harness.now, 1.0), ended_before=0)
    with pytest.raises(CommandRefused, match="not used before"):
        join_with_token(harness)


def test_a_machine_of_a_pool_with_an_instance_profile_joins_by_its_proof_only() -> None:
    ec2 = {**CONFIG["pools"]["linux"].get("ec2", {}), "instance_profile": "leasehold-machine"}
    harness = a_launched(ec2=ec2)
    assert isinstance(harness.fleet, SeenFleet)
    assert JOIN_TOKEN not in harness.fleet.seen[0]
    other = a_launched()
    with pytest.raises(CommandRefused, match="the proof of the pool's instance profile"):
        join_with_token(harness, token=find_token(other))
    # Also a token that the pool's machines got before it had a profile.
    pool = {**CONFIG["pools"]["linux"], "agent": True, "ec2": ec2}
    apply_rules(other.ports, {"pools": {"linux": pool}})
    with pytest.raises(CommandRefused, match="the proof of the pool's instance profile"):
        join_with_token(other)
    assert join_with(other).slot == "linux-1"


@pytest.mark.parametrize("state", ["terminating", "empty", "stopped", "error"])
def test_a_slot_that_no_longer_has_its_machine_is_refused(state: Any, join_once: Join) -> None:
    harness = a_launched()
    harness.put(msgspec.structs.replace(harness.slot(), state=state))
    with pytest.raises(CommandRefused, match="agent = true") as refused:
        join_once(harness)
    assert (refused.value.fault.path, refused.value.fault.code) == ("machine", "unknown")


@pytest.mark.parametrize("machine", ["i-2", "i-9"])
@pytest.mark.parametrize("way", [join_with, join_with_token])
def test_a_machine_that_no_slot_has_is_refused(machine: str, way: Callable[[Harness, str], Identity]) -> None:
    harness = a_launched()
    with pytest.raises(CommandRefused, match="agent = true"):
        way(harness, machine)


def test_a_machine_of_a_pool_without_agents_is_refused() -> None:
    harness = a_launched(agent=False)
    assert isinstance(harness.fleet, SeenFleet)
    assert JOIN_TOKEN not in harness.fleet.seen[0]
    for way in (join_with, lambda each: join_with_token(each, token="A" * TOKEN_LENGTH)):
        with pytest.raises(CommandRefused, match="agent = true"):
            way(harness)


def test_a_principal_with_another_role_keeps_its_name(join_once: Join) -> None:
    harness = a_launched()
    add_principal(harness.store, {"name": "linux-1", "role": "producer"})
    with pytest.raises(CommandRefused, match="role producer"):
        join_once(harness)
    assert find_principal(harness).role == "producer"


def test_the_key_of_an_ended_machine_does_not_count_for_the_next_machine_of_the_slot(join_once: Join) -> None:
    harness = a_launched()
    join_once(harness)
    old = find_principal(harness)
    assert register_as(harness, old)["ok"]
    harness.fleet.terminate(["i-1"])
    for _ in range(2):
        check_machines(harness)
        harness.tick()
    check_machines(harness)
    assert harness.slot("linux-1").instance_id == "i-2"
    refused = register_as(harness, old, machine="i-2")
    assert [each["path"] for each in refused["errors"]] == ["machine"]
    assert [each["path"] for each in register_as(harness, old, run="b")["errors"]] == ["machine"]
    assert harness.slot("linux-1").machine is None


def test_the_token_of_an_ended_machine_does_not_count_for_the_next_machine_of_the_slot() -> None:
    harness = a_launched()
    harness.fleet.terminate(["i-1"])
    for _ in range(2):
        check_machines(harness)
        harness.tick()
    check_machines(harness)
    assert harness.slot("linux-1").instance_id == "i-2"
    with pytest.raises(CommandRefused, match="the token of the launch of this machine"):
        join_with_token(harness, "i-2")
    with pytest.raises(CommandRefused, match="agent = true"):
        join_with_token(harness, "i-1")


@pytest.mark.parametrize("rotations", [0, 1])
def test_a_launch_that_is_sent_again_has_the_same_token_also_after_the_key_of_the_workers_was_rotated(
    rotations: int,
) -> None:
    harness = Harness({"pools": {"linux": {**CONFIG["pools"]["linux"], "agent": True}}}, fleet=SeenFleet())
    harness.submit("r1")
    harness.tick()
    launch_id = harness.slot().launch_id or ""
    harness.fleet.errors = [CloudError("transient", "InternalError", "")]
    assert launch(harness.ports, launch_id, "linux-1") == "transient"
    for _ in range(rotations):
        rotate_principal(harness.store, WORKER)
    harness.now += 60
    assert launch(harness.ports, launch_id, "linux-1") == "success"
    assert find_token(harness, 0) == find_token(harness, 1)
    assert join_with_token(harness).slot == "linux-1"


def test_the_database_has_the_hash_of_a_token_only(sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    harness = Harness({"pools": {"linux": {**CONFIG["pools"]["linux"], "agent": True}}}, store=store, fleet=SeenFleet())
    harness.submit("r1")
    harness.tick()
    harness.fleet.errors = [CloudError("transient", "InternalError", "")]
    launch(harness.ports, harness.slot().launch_id or "", "linux-1")
    token = find_token(harness)
    request = harness.slot().launch_request or {}
    assert len(request["join"]["sha256"]) == 64
    assert token not in json.dumps(request)
    harness.put(msgspec.structs.replace(harness.slot(), not_before=0.0))
    launch(harness.ports, harness.slot().launch_id or "", "linux-1")
    join_with_token(harness)
    store.close()
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    found = b"".join(each.read_bytes() for each in path.parent.glob(f"{path.name}*"))
    assert b"join-" in found
    assert token.encode() not in found


def test_of_two_senders_of_one_token_at_once_one_gets_a_key(open_one: Open) -> None:
    store, other = open_one(), open_one()
    pool = {**CONFIG["pools"]["linux"], "agent": True}
    harness = Harness({"pools": {"linux": pool}}, store=store, fleet=SeenFleet())
    rules = harness.ports.rules()
    harness.submit("r1")
    for number in range(1, 4):
        harness.tick()
        harness.play_tasks()
        token, machine = find_token(harness, number - 1), f"i-{number}"

        def attempt(each: Store, machine: str = machine, token: str = token) -> str:
            try:
                return join_by_token(each, rules, machine, token).key
            except CommandRefused as refused:
                return refused.fault.path

        keys: list[Any] = race(partial(attempt, store), partial(attempt, other))
        principal = next(each for each in store.find_principals() if each.name == "linux-1")
        assert sorted(keys) == sorted([principal.key, "token"])
        harness.put(msgspec.structs.replace(harness.slot(), state="empty", **without_machine(harness.slot())))


@pytest.mark.parametrize(("slot", "machine", "path"), [("linux-2", "i-1", "slot"), ("linux-1", "i-2", "machine")])
def test_a_host_asks_for_the_leases_of_its_own_slot_and_machine_only(slot: str, machine: str, path: str) -> None:
    harness = a_harness()
    join_with(harness)
    principal = find_principal(harness)
    check_question(principal, "leases", slot="linux-1", machine="i-1")
    with pytest.raises(CommandRefused) as refused:
        check_question(principal, "leases", slot=slot, machine=machine)
    assert refused.value.fault.path == path
