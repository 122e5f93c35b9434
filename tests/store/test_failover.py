"""A database that fails over: sessions on a standby, several hosts, and a host that falls silent."""

from collections.abc import Iterator
from itertools import count

import pytest

from scheduler.model.slots import Slot
from scheduler.ports import StandbyError, StoreUnavailableError
from scheduler.store.migrating import migrate, schema_state
from scheduler.store.opening import find_fault
from scheduler.store.sql import SqlStore
from testbed.postgresql_server import PostgresServer, start_own_postgresql
from testbed.proxy import Proxy
from tests.builders import a_slot
from tests.store.conftest import Open
from tests.store.test_contract import save

NUMBERS = count()
ANY = "?target_session_attrs=any"
SILENT = "the server sent no answer for"


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    server = start_own_postgresql()
    migrate(server.url())
    yield server
    server.remove()


@pytest.fixture(scope="module")
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    server = primary.start_standby()
    yield server
    server.remove()


@pytest.fixture
def proxy(primary: PostgresServer) -> Iterator[Proxy]:
    with Proxy(primary.port) as started:
        yield started


def at(server: PostgresServer, port: int) -> str:
    return server.url().replace(f":{server.port}/", f":{port}/")


def new_slot() -> Slot:
    return a_slot(f"linux-{next(NUMBERS)}")


def write_in_silence(store: SqlStore, proxy: Proxy) -> None:
    with store.transaction() as transaction:
        proxy.fall_silent()
        transaction.save([new_slot()])


@pytest.mark.parametrize("query", ["", ANY], ids=["default", "any"])
def test_a_session_on_a_standby_is_dropped(
    query: str, primary: PostgresServer, standby: PostgresServer, proxy: Proxy, open_sql: Open
) -> None:
    """The sessions stay open when the name of the database leads to the primary again."""
    store = open_sql(at(primary, proxy.port) + query)
    before = save(store, new_slot())
    store.find_slots()
    proxy.target = standby.port
    proxy.cut()
    if query:
        # After a read the session begins transactions that write by BEGIN READ WRITE.
        store.find_slots()
    with pytest.raises(StandbyError, match="the server is a standby"):
        save(store, new_slot())
    proxy.target = primary.port
    after = save(store, new_slot())
    assert {slot.id for slot in (*before, *after)} <= {slot.id for slot in store.find_slots()}


def test_a_session_that_reads_on_a_standby_is_dropped_by_its_first_write(
    primary: PostgresServer, standby: PostgresServer, proxy: Proxy, open_sql: Open
) -> None:
    proxy.target = standby.port
    store = open_sql(at(primary, proxy.port) + ANY)
    store.find_slots()
    slot = new_slot()
    with pytest.raises(StandbyError, match="the server is a standby"):
        save(store, slot)
    proxy.target = primary.port
    assert save(store, slot)


@pytest.mark.parametrize("order", [("standby", "primary"), ("primary", "standby")])
def test_of_several_hosts_the_one_that_accepts_writes_is_taken(
    order: tuple[str, str], primary: PostgresServer, standby: PostgresServer, open_sql: Open
) -> None:
    ports = {"primary": primary.port, "standby": standby.port}
    hosts = ",".join(f"127.0.0.1:{ports[name]}" for name in order)
    store = open_sql(primary.url().replace(f"127.0.0.1:{primary.port}", hosts))
    (slot,) = save(store, new_slot())
    assert slot in store.find_slots()


def test_of_several_standbys_none_is_taken(standby: PostgresServer, open_sql: Open) -> None:
    both = f"127.0.0.1:{standby.port},localhost:{standby.port}"
    store = open_sql(standby.url().replace(f"127.0.0.1:{standby.port}", both))
    with pytest.raises(StandbyError, match="no server of the URL accepts writes"):
        store.find_slots()


@pytest.mark.parametrize("query", ["", ANY], ids=["default", "any"])
def test_the_check_of_the_schema_names_a_standby(query: str, standby: PostgresServer) -> None:
    fault = find_fault(standby.url() + query)
    assert fault is not None
    assert "the server is a standby" in fault
    with pytest.raises(StandbyError, match="the server is a standby"):
        migrate(standby.url() + query)


def test_a_standby_that_the_url_asks_for_is_read(standby: PostgresServer, open_sql: Open) -> None:
    url = f"{standby.url()}?target_session_attrs=standby"
    open_sql(url).find_slots()
    assert schema_state(url).is_current


def test_a_server_that_falls_silent_is_given_up(
    primary: PostgresServer, proxy: Proxy, open_sql: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("ANSWER_SECONDS", "TEST_SECONDS"):
        monkeypatch.setattr(f"scheduler.store.postgresql_connection.{limit}", 0.2)
    store = open_sql(at(primary, proxy.port))
    (kept,) = save(store, new_slot())
    proxy.fall_silent()
    with pytest.raises(StoreUnavailableError, match=SILENT):
        write_in_silence(store, proxy)
    proxy.fall_silent()
    assert kept in store.find_slots()
