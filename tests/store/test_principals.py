"""Principals in every store: added, listed, rotated, removed; each change raises the version that processes watch."""

from collections.abc import Callable

import pytest

from scheduler.model.principals import WORKER
from scheduler.model.validation import InvalidInputError
from scheduler.operations.principals import add_principal, change_right, remove_principal, rotate_principal
from scheduler.ports import EventFilter, Store, StoredPrincipal
from scheduler.protocol.signing import read_key
from tests.builders import NOW
from tests.store.conftest import Clock, Opener
from tests.store.test_contract import fail, losing


def names(store: Store) -> list[str]:
    return [row.name for row in store.find_principals()]


def add(store: Store, name: str = "alice", role: str = "producer", accounts: tuple[str, ...] = ()) -> StoredPrincipal:
    return add_principal(store, {"name": name, "role": role, "accounts": list(accounts)})


def test_a_new_store_has_the_principal_of_the_workers_alone(store: Store) -> None:
    (row,) = store.find_principals()
    assert (row.name, row.role, row.accounts, row.previous_key) == (WORKER, "worker", (), None)
    assert len(read_key(row.key)) == 32


def test_what_is_added_is_listed_in_the_order_of_the_names(store: Store) -> None:
    zoe = add(store, "zoe", "operator")
    alice = add(store, "alice", accounts=("ci", "lab", "ci"))
    assert alice.accounts == ("ci", "lab")
    assert alice.created_at == NOW
    assert store.find_principals() == [alice, store.find_principals()[1], zoe]
    assert names(store) == ["alice", WORKER, "zoe"]
    with store.transaction() as transaction:
        assert transaction.load_principals() == {row.name: row for row in store.find_principals()}


def test_no_two_keys_are_the_same(store: Store) -> None:
    keys = [add(store, f"p{number}").key for number in range(5)] + [row.key for row in store.find_principals()]
    assert len(set(keys)) == 6


@pytest.mark.parametrize(
    ("name", "role", "accounts", "path"),
    [
        ("alice", "operator", (), "name"),  # exists
        (WORKER, "operator", (), "name"),  # exists from the start
        ("", "operator", (), "name"),
        ("a b", "operator", (), "name"),
        ("bob", "worker", (), "role"),
        ("bob", "root", (), "role"),
        ("bob", "operator", ("ci",), "accounts"),
        ("bob", "producer", ("c i",), "accounts[0]"),
    ],
)
def test_a_wrong_principal_is_refused_and_changes_nothing(
    store: Store, name: str, role: str, accounts: tuple[str, ...], path: str
) -> None:
    add(store, "alice")
    before, version = store.find_principals(), store.read_cluster().principals_version
    with pytest.raises(InvalidInputError) as refused:
        add(store, name, role, accounts)
    assert [fault.path for fault in refused.value.faults] == [path]
    assert (store.find_principals(), store.read_cluster().principals_version) == (before, version)


def test_a_rotated_principal_has_both_keys_until_the_grace_period_is_over(store: Store, clock: Clock) -> None:
    first = add(store)
    second = rotate_principal(store, "alice", 60)
    assert first.key != second.key
    (stored,) = (row for row in store.find_principals() if row.name == "alice")
    assert stored == second
    assert stored.list_keys(NOW) == [second.key, first.key]
    assert stored.list_keys(NOW + 59.9) == [second.key, first.key]
    assert stored.list_keys(NOW + 60) == [second.key]
    third = rotate_principal(store, "alice", 0)
    assert third.list_keys(NOW) == [third.key]


def test_the_workers_principal_is_rotated_and_not_removed(store: Store) -> None:
    (before,) = store.find_principals()
    after = rotate_principal(store, WORKER)
    assert after.list_keys(NOW) == [after.key, before.key]
    with pytest.raises(InvalidInputError):
        remove_principal(store, WORKER)
    assert store.find_principals() == [after]


def test_a_removed_principal_is_gone_and_its_name_is_free(store: Store) -> None:
    first = add(store)
    assert remove_principal(store, "alice") == first
    assert names(store) == [WORKER]
    assert add(store).key != first.key


@pytest.mark.parametrize("act", [rotate_principal, remove_principal])
def test_an_unknown_name_is_refused_with_the_near_one(store: Store, act: Callable[[Store, str], object]) -> None:
    add(store)
    with pytest.raises(InvalidInputError) as refused:
        act(store, "alise")
    assert str(refused.value) == 'there is no principal alise (did you mean "alice"?)'


def test_each_change_raises_the_version_and_is_an_event_without_the_key(store: Store) -> None:
    versions = [store.read_cluster().principals_version]
    added = add(store)
    versions.append(store.read_cluster().principals_version)
    rotated = rotate_principal(store, "alice")
    versions.append(store.read_cluster().principals_version)
    remove_principal(store, "alice")
    versions.append(store.read_cluster().principals_version)
    assert versions == sorted(set(versions))
    events = store.read_events(EventFilter())
    assert [event.name for event in events] == ["principal_added", "principal_rotated", "principal_removed"]
    assert {event.cause for event in events} == {"operator"}
    assert all(event.detail == {"principal": "alice", "role": "producer"} for event in events)
    assert not any(key in repr((events, added, rotated)) for key in (added.key, rotated.key))


def test_a_transaction_that_fails_leaves_principals_and_version(store: Store) -> None:
    row, version = add(store), store.read_cluster().principals_version
    with losing(store, KeyError) as transaction:
        transaction.load_principals()
        transaction.save_principals([StoredPrincipal(name="bob", role="reader", key="x", created_at=NOW)])
        transaction.delete_principals(["alice"])
        assert [*transaction.load_principals()] == ["bob", WORKER]
        fail()
    assert names(store) == ["alice", WORKER]
    assert row in store.find_principals()
    assert store.read_cluster().principals_version == version


def test_the_state_of_access_is_the_clusters(store: Store, clock: Clock) -> None:
    before = store.read_cluster()
    clock.now += 5
    after = store.read_cluster()
    assert before.identity
    assert (after.identity, after.now - before.now) == (before.identity, 5)


def test_another_process_sees_the_same_cluster_and_principals(reopen: Opener) -> None:
    added = add(reopen())
    other = reopen()
    assert added in other.find_principals()
    assert other.read_cluster().identity == reopen().read_cluster().identity
    with reopen().transaction() as transaction:
        assert transaction.identity() == other.read_cluster().identity


def test_a_right_is_granted_and_withdrawn_and_each_change_is_recorded(store: Store) -> None:
    add(store)
    born = add_principal(store, {"name": "night", "role": "operator", "rights": ["run", "run"]})
    assert (born.rights, born.principal.rights) == (("run",), ("run",))
    version = store.read_cluster().principals_version
    for has_it, expected in ((True, ("run",)), (True, ("run",)), (False, ()), (False, ())):
        assert change_right(store, "alice", "run", has_it=has_it).rights == expected
        assert store.find_principals()[0].rights == expected
    assert store.read_cluster().principals_version == version + 2
    changes = [
        event.name for event in store.read_events(EventFilter()) if (event.detail or {}).get("principal") == "alice"
    ]
    assert changes == ["principal_added", "principal_granted", "principal_withdrawn"]
    assert rotate_principal(store, "night").rights == ("run",)


def test_only_principals_that_submit_get_a_right(store: Store) -> None:
    add(store, "lab-1", "host")
    refused = pytest.raises(InvalidInputError, match="rights: expected a role that submits")
    with refused:
        add_principal(store, {"name": "eyes", "role": "reader", "rights": ["run"]})
    for name in ("lab-1", WORKER):
        with refused:
            change_right(store, name, "run", has_it=True)
    with pytest.raises(InvalidInputError, match="there is no principal unknown"):
        change_right(store, "unknown", "run", has_it=True)
