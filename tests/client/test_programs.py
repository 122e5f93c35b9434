"""A sample of programs that use the whole public API of the client. mypy checks the types that the methods accept and
return (`assert_type`); the tests check that no public method is missing in the sample.

A change of the client that makes mypy report a fault here breaks programs of users.
"""

import ast
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, assert_type

import pytest

import leasehold
from leasehold import (
    Account,
    AccountFields,
    Answer,
    AsyncClient,
    AsyncHints,
    AsyncHosts,
    AsyncLease,
    AsyncLost,
    AsyncWatch,
    AsyncWatches,
    BadCredentials,
    CannotBeServed,
    Change,
    Client,
    Command,
    ComponentFields,
    Conditions,
    Ended,
    Explanation,
    Fault,
    Hints,
    Host,
    Hosts,
    Joined,
    Lease,
    LeaseholdError,
    LeaseKey,
    Lost,
    NoStack,
    NotAnswered,
    Overloaded,
    Placement,
    Printed,
    Refused,
    Reservation,
    ReservationFields,
    RulesApplied,
    RulesInForce,
    RulesPreview,
    Run,
    RunTimes,
    Slot,
    Table,
    Taken,
    Unavailable,
    Unknown,
    UntrustedFolder,
    Watch,
)
from leasehold.canaries import Probe


def open_clients(folder: Path) -> Iterator[Client | AsyncClient]:
    yield Client()
    yield Client(
        "redis://127.0.0.1", view_url=None, prefix="p:", timeout=3, keys=folder / "keys", principal="p", key="k"
    )
    yield Client("https://localhost", key_file=folder / "key", key="k")
    yield AsyncClient()
    yield AsyncClient("rediss://127.0.0.1", view_url="redis://h", prefix=None, timeout=1.5, keys="keys", key_file="key")
    yield AsyncClient("https://localhost", token="t", principal=None, key=None)


def change_with(client: Client, fields: ReservationFields, account: AccountFields) -> None:
    assert_type(client.url, str)
    assert_type(client.timeout, float)
    assert_type(client.now(), float)
    assert_type(client.probe, Probe)
    assert_type(client.hosts, Hosts)
    assert_type(client.ask("submit", {"id": "r"}, timeout=1, request="q"), dict[str, Any])
    components: list[ComponentFields] = [{"name": "m", "count": 2, "kind": "elastic"}]
    assert_type(client.reserve(timeout=2, system="s", components=components), Reservation)
    assert_type(client.reserve(**fields), Reservation)
    assert_type(client.submit({"system": "s"}, timeout=None), Reservation)
    assert_type(client.reserve_many([fields, {"pool": "p"}], timeout=60), Table[Answer])
    for answer in (
        client.renew("r", 1, key="k", timeout=1),
        client.confirm("r", 1, slot="s", as_of=1.0, key=None, timeout=1),
        client.absent("r", as_of=1.0, timeout=1),
        client.idle("s", labels={"a": "b"}, as_of=1.0, timeout=1),
        client.release("r", None, key="k", timeout=1),
        client.cancel("r", reason="why", timeout=1),
        client.priority("r", 2.5, timeout=1),
        client.fail("r", 1, component="main", reason="why", key="k", timeout=1),
        client.surrender("r", 1, component="more", want=2, key="k", timeout=1),
        client.decline("r", 1, key="k", timeout=1),
        client.suspend("r", 1, key="k", timeout=1),
        client.resume("r", key="k", timeout=1),
        client.cordon("s", timeout=1),
        client.uncordon("s", timeout=1),
        client.drain("s", timeout=1),
        client.account("a", timeout=1, **account),
        client.reset_account("a", timeout=1),
        client.forget_account("a", timeout=1),
    ):
        assert_type(answer, Answer)
        assert_type(answer.token, int | None)
    assert_type(client.renew_many({"r": 1, "q": None}, timeout=1), Table[Answer])
    assert_type(client.release_many({"r": 1}, timeout=1), Table[Answer])
    assert_type(client.find_key("r"), str | None)
    client.close()


def read_with(client: Client, change_row: Callable[[Reservation], None]) -> None:
    with client:
        client.ping()
    assert_type(client.get("r"), Reservation | None)
    assert_type(client.recall("r", "q", timeout=1), Table[Reservation])
    assert_type(client.slots(pool="p", state=None), Table[Slot])
    assert_type(client.slot("s"), Slot | None)
    assert_type(client.accounts(), Table[Account])
    assert_type(client.run_times(account="a", job=None), Table[RunTimes])
    assert_type(client.etas(["a"]), dict[str, dict[str, Any]])
    assert_type(client.foresight(), dict[str, Any])
    assert_type(client.report(), dict[str, Any])
    assert_type(client.explain("r"), Explanation)
    assert_type(client.suggest("r", timeout=1), Explanation)
    a_run: Run = {"argv": ["make"], "env": {"A": "b"}, "on_exit": "release"}
    assert_type(client.submit({"id": "r", "pool": "p"}, run=a_run, timeout=1), Reservation)
    assert_type(client.command("r", timeout=1), Command)
    assert_type(client.rerun("r", new_id="r2", timeout=1), Reservation)
    assert_type(client.conditions("p", timeout=1), Conditions)
    assert_type(client.list(["leased"], account="a", pool="p", system="s", tags={"k": "v"}), Table[Reservation])
    client.check_names(account="a", pool=None, system="s")
    assert_type(client.rules(3, timeout=1), RulesInForce)
    preview = client.preview_rules({"pools": {}}, timeout=1)
    assert_type(preview, RulesPreview)
    assert_type(client.apply_rules({}, expected=preview.version, source="me", timeout=1), RulesApplied)
    row = client.wait("r", ["leased", "ended"], 5, renew=True, wait_anyway=False)
    assert_type(row.leases, tuple[Placement, ...])
    with client.watch("r") as watch:
        assert_type(watch, Watch)
        assert_type(watch.reservation, str)
        assert_type(watch.read(), Reservation | None)
        seen = watch.read_joined()
        assert_type(seen, Joined)
        if seen.row is not None:
            change_row(seen.row)
        watch.wait_for_hint(1.0)


def hold_with(client: Client, fields: ReservationFields) -> None:
    def on_revoke(lease: Lease) -> None:
        lease.surrender("more.1", want=None, timeout=1)

    with client.lease(wait=5, wait_anyway=True, on_revoke=on_revoke, on_lost=print, **fields) as lease:
        assert_type(lease, Lease)
        assert_type(lease.id, str)
        assert_type(lease.token, int)
        assert_type(lease.lost, Lost)
        assert_type(lease.revoking, threading.Event)
        assert_type(lease.reason, str | None)
        assert_type(lease.reservation, Reservation)
        assert_type(lease.placements, tuple[Placement, ...])
        assert_type((lease.slot, lease.instance_id, lease.address), tuple[str, str | None, str | None])
        assert_type((lease.type, lease.zone, lease.cores), tuple[str | None, str | None, float | None])
        assert_type((lease.resources, lease.is_held), tuple[dict[str, float], bool])
        assert_type(
            (lease.deadline, lease.seconds_left, lease.revoke_by), tuple[float | None, float | None, float | None]
        )
        lease.on_revoke(on_revoke)
        lease.on_lost(print)
        for change in lease.changes(timeout=1):
            assert_type(change, Change)
            assert_type((change.component, change.deadline, change.cores), tuple[str, float | None, float | None])
        assert_type(lease.surrender("more", want=1, timeout=None), Answer)
        lease.lost.wait(1.0)


def host_with(hosts: Hosts) -> None:
    answer = hosts.register(
        "s", pool="p", machine="m", resources={"cpus": 2}, labels={}, address="a", run="x", waited=0.5, timeout=1
    )
    assert_type(answer, Answer)
    hosts.heartbeat("s", "m", "1:2:3", "x")
    hosts.check("s", "m")
    assert_type(hosts.leave("s", "m", run="x", timeout=1), Answer)
    assert_type(hosts.remove("s", timeout=1), Answer)
    assert_type(hosts.leases("s", "m", run=None, timeout=1), Host)
    assert_type(hosts.take("s", "m", run="x", reservation="r", component="c", token=1, nonce="n", timeout=1), Taken)
    assert_type(hosts.started("s", "m", run="x", reservation="r", component="c", token=1, timeout=1), Answer)
    report: Printed = {"reservation": "r", "component": "c", "token": 1, "tail": "t", "bytes": 1}
    printed = hosts.output("s", "m", run="x", reports=[report], timeout=1)
    assert_type(printed, tuple[Answer, ...])
    ended = hosts.exited(
        "s",
        "m",
        run="x",
        reservation="r",
        component="c",
        token=1,
        why="exited",
        exit_code=0,
        signal=None,
        error=None,
        tail="t",
        bytes=1,
        timeout=1,
    )
    assert_type(ended, Answer)
    hints = hosts.hints("s")
    assert_type(hints, Hints)
    hints.listen()
    assert_type(hints.expected, frozenset[str])
    assert_type(hints.commands, Sequence[LeaseKey])
    hints.note(Joined(None))
    hints.forget()
    assert_type(hints.wait(1.0), bool)
    hints.close()


async def change_on_a_loop(client: AsyncClient, fields: ReservationFields, account: AccountFields) -> None:
    assert_type((client.url, client.timeout, client.now()), tuple[str, float, float])
    assert_type(client.hosts, AsyncHosts)
    assert_type(await client.ask("submit", {"id": "r"}, timeout=1, request="q"), dict[str, Any])
    assert_type(await client.reserve(timeout=2, **fields), Reservation)
    assert_type(await client.submit({"system": "s"}, timeout=None), Reservation)
    assert_type(await client.reserve_many([fields, {"pool": "p"}], timeout=60), Table[Answer])
    for answer in (
        await client.renew("r", 1, key="k", timeout=1),
        await client.confirm("r", 1, slot="s", as_of=1.0, key=None, timeout=1),
        await client.absent("r", as_of=1.0, timeout=1),
        await client.idle("s", labels={"a": "b"}, as_of=1.0, timeout=1),
        await client.release("r", None, key="k", timeout=1),
        await client.cancel("r", reason="why", timeout=1),
        await client.priority("r", 2.5, timeout=1),
        await client.fail("r", 1, component="main", reason="why", key="k", timeout=1),
        await client.surrender("r", 1, component="more", want=2, key="k", timeout=1),
        await client.decline("r", 1, key="k", timeout=1),
        await client.suspend("r", 1, key="k", timeout=1),
        await client.resume("r", key="k", timeout=1),
        await client.cordon("s", timeout=1),
        await client.uncordon("s", timeout=1),
        await client.drain("s", timeout=1),
        await client.account("a", timeout=1, **account),
        await client.reset_account("a", timeout=1),
        await client.forget_account("a", timeout=1),
    ):
        assert_type(answer, Answer)
    assert_type(await client.renew_many({"r": 1, "q": None}, timeout=1), Table[Answer])
    assert_type(await client.release_many({"r": 1}, timeout=1), Table[Answer])
    assert_type(await client.find_key("r"), str | None)
    assert_type(await client.run(lambda blocking: blocking.get("r")), Reservation | None)
    await client.close()


async def read_on_a_loop(client: AsyncClient) -> None:
    async with client:
        await client.ping()
    assert_type(await client.get("r"), Reservation | None)
    assert_type(await client.recall("r", "q", timeout=1), Table[Reservation])
    assert_type(await client.slots(pool="p", state=None), Table[Slot])
    assert_type(await client.slot("s"), Slot | None)
    assert_type(await client.accounts(), Table[Account])
    assert_type(await client.run_times(account="a", job=None), Table[RunTimes])
    assert_type(await client.etas(["a"]), dict[str, dict[str, Any]])
    assert_type(await client.foresight(), dict[str, Any])
    assert_type(await client.report(), dict[str, Any])
    assert_type(await client.explain("r"), Explanation)
    assert_type(await client.suggest("r", timeout=1), Explanation)
    a_run: Run = {"argv": ["make"], "env": {"A": "b"}, "on_exit": "release"}
    assert_type(await client.submit({"id": "r", "pool": "p"}, run=a_run, timeout=1), Reservation)
    assert_type(await client.command("r", timeout=1), Command)
    assert_type(await client.rerun("r", new_id="r2", timeout=1), Reservation)
    assert_type(await client.conditions("p", timeout=1), Conditions)
    assert_type(await client.list("pending", account="a", pool="p", system="s", tags={"k": "v"}), Table[Reservation])
    await client.check_names(account="a", pool=None, system="s")
    assert_type(await client.rules(3, timeout=1), RulesInForce)
    preview = await client.preview_rules({"pools": {}}, timeout=1)
    assert_type(preview, RulesPreview)
    assert_type(await client.apply_rules({}, expected=preview.version, source="me", timeout=1), RulesApplied)
    assert_type(await client.wait("r", ["leased"], 5, renew=True, wait_anyway=False), Reservation)
    async with client.watch("r") as watch:
        assert_type(watch, AsyncWatch)
        assert_type(watch.reservation, str)
        assert_type(await watch.read(), Reservation | None)
        assert_type(await watch.read_joined(), Joined)
        await watch.wait_for_hint(1.0)
    async with client.watch_many(["r", "q"]) as watches:
        assert_type(watches, AsyncWatches)
        assert_type(watches.reservations, tuple[str, ...])
        assert_type(await watches.read_joined(), dict[str, Joined])
        await watches.wait_for_hint(1.0)


async def hold_on_a_loop(client: AsyncClient, fields: ReservationFields) -> None:
    async def on_revoke(lease: AsyncLease) -> None:
        await lease.surrender("more.1", want=None, timeout=1)

    async with client.lease(wait=5, wait_anyway=True, on_revoke=on_revoke, on_lost=print, **fields) as lease:
        assert_type(lease, AsyncLease)
        assert_type((lease.id, lease.token, lease.slot), tuple[str, int, str])
        assert_type(lease.lost, AsyncLost)
        assert_type((lease.reason, lease.deadline, lease.seconds_left), tuple[str | None, float | None, float | None])
        lease.on_revoke(on_revoke)
        lease.on_lost(print)
        async for change in lease.changes(timeout=1):
            assert_type(change, Change)
        assert_type(await lease.surrender("more", want=1, timeout=None), Answer)
        await lease.lost.wait()
        await lease.revoking.wait()


async def host_on_a_loop(hosts: AsyncHosts) -> None:
    answer = await hosts.register(
        "s", pool="p", machine="m", resources={"cpus": 2}, labels={}, address="a", run="x", waited=0.5, timeout=1
    )
    assert_type(answer, Answer)
    await hosts.heartbeat("s", "m", "1:2:3", "x")
    await hosts.check("s", "m")
    assert_type(await hosts.leave("s", "m", run="x", timeout=1), Answer)
    assert_type(await hosts.remove("s", timeout=1), Answer)
    assert_type(await hosts.leases("s", "m", run=None, timeout=1), Host)
    assert_type(
        await hosts.take("s", "m", run="x", reservation="r", component="c", token=1, nonce="n", timeout=1), Taken
    )
    assert_type(await hosts.started("s", "m", run="x", reservation="r", component="c", token=1, timeout=1), Answer)
    report: Printed = {"reservation": "r", "component": "c", "token": 1, "tail": "t", "bytes": 1}
    printed = await hosts.output("s", "m", run="x", reports=[report], timeout=1)
    assert_type(printed, tuple[Answer, ...])
    ended = await hosts.exited(
        "s",
        "m",
        run="x",
        reservation="r",
        component="c",
        token=1,
        why="exited",
        exit_code=0,
        signal=None,
        error=None,
        tail="t",
        bytes=1,
        timeout=1,
    )
    assert_type(ended, Answer)
    hints = hosts.hints("s")
    assert_type(hints, AsyncHints)
    assert_type(await hints.wait(1.0), bool)
    await hints.close()


def handle(error: LeaseholdError) -> Mapping[str, object]:
    match error:
        case Refused():
            return {fault.path: assert_type(fault, Fault).got for fault in error.errors}
        case Overloaded() | NotAnswered():
            assert isinstance(error, TimeoutError)
            return {"code": assert_type(error.code, str | None), "reason": assert_type(error.reason, str)}
        case Ended():
            return {"phase": error.phase, "reason": error.reason, "code": error.code}
        case CannotBeServed():
            return {"reservation": error.reservation, "code": error.code, "reason": error.reason}
        case Unavailable():
            assert isinstance(error, ConnectionError)
        case Unknown():
            assert isinstance(error, LookupError)
        case BadCredentials() | NoStack() | UntrustedFolder():
            return {}
    return {}


def list_used(module: ModuleType) -> set[str]:
    """Return the names of all attributes that the sample uses."""
    tree = ast.parse(inspect.getsource(module))
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


PUBLIC = [Client, AsyncClient, Hosts, AsyncHosts, Lease, AsyncLease, Watch, AsyncWatch, AsyncWatches, Hints, AsyncHints]


def test_both_clients_have_the_same_methods() -> None:
    blocking, on_a_loop = ({name for name in dir(kind) if not name.startswith("_")} for kind in (Client, AsyncClient))
    assert (blocking - on_a_loop, on_a_loop - blocking) == ({"probe"}, {"run", "watch_many"})


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_the_sample_uses_every_public_method(kind: type) -> None:
    public = {name for name in dir(kind) if not name.startswith("_")}
    assert public - list_used(inspect.getmodule(handle) or leasehold) == set()
