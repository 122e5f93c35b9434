"""Cluster time on SQL: it neither jumps nor goes back, whatever wall clocks, boots and the server's clock do."""

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path
from threading import Barrier

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import make_url, text

from scheduler.ports import ClusterRow, LeaderTerm, Store, StoreUnavailableError
from scheduler.protocol.clock import read_monotonic
from scheduler.store.opening import open_store
from scheduler.store.postgresql import PostgresDialect
from scheduler.store.sql import SqlStore
from scheduler.store.sqlite import BootClock, SqliteDialect
from tests.builders import a_slot
from tests.sqlite_file import MakeSqlite
from tests.store.test_contract import save

HOUR = 3600.0
ABOUT = 30.0
"""Seconds that a slow machine may take for one test; far less than any jump here."""


class Host:
    """A host whose wall clock and boot a test sets; time passes only when the test changes it."""

    def __init__(self, wall: float = 1_790_000_000.0) -> None:
        self.boot, self.wall, self.monotonic = "boot 1", wall, 1000.0

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds

    def reboot(self, wall: float) -> None:
        self.boot, self.wall, self.monotonic = f"{self.boot}'", wall, 3.0


def start_process(path: Path, host: Host, wrong_by: float = 0.0) -> SqlStore:
    """Open the store in a process of this host whose wall clock is wrong by this number of seconds."""
    dialect = SqliteDialect(path)
    dialect._boot = BootClock(lambda: host.boot, lambda: host.monotonic, lambda: host.wall + wrong_by)
    return SqlStore(dialect)


@pytest.fixture
def path(sqlite_url: str) -> Path:
    return Path(sqlite_url.removeprefix("sqlite:///"))


class TestSqlite:
    def test_the_wall_clock_is_read_once_a_boot(self, path: Path) -> None:
        host = Host()
        with closing(start_process(path, host)) as store:
            first = store.now()
            assert first == host.wall
            host.pass_time(10)
            host.wall += HOUR
            assert store.now() == pytest.approx(first + 10)
            with store.transaction() as transaction:
                assert transaction.now() == pytest.approx(first + 10)

    @pytest.mark.parametrize("wrong_by", [-600.0, -5.0, 20.0, 600.0])
    def test_processes_with_wrong_wall_clocks_have_the_same_time(self, path: Path, wrong_by: float) -> None:
        host = Host()
        with closing(start_process(path, host)) as right, closing(start_process(path, host, wrong_by)) as wrong:
            assert right.now() == pytest.approx(wrong.now())

    def test_a_base_outlives_the_transaction_for_which_it_was_made(self, path: Path) -> None:
        host = Host()
        with closing(start_process(path, host)) as store:
            first = 0.0
            with suppress(KeyError), store.transaction() as transaction:
                first = transaction.now()
                raise KeyError
            with closing(start_process(path, host, wrong_by=HOUR)) as other:
                assert other.now() == pytest.approx(first)

    @pytest.mark.parametrize("wall", [1_790_000_000.0 - HOUR, 0.0, 1_790_000_000.0 + HOUR])
    def test_after_a_reboot_time_goes_on_above_what_was_written(self, path: Path, wall: float) -> None:
        host = Host()
        with closing(start_process(path, host)) as store:
            host.pass_time(100)
            save(store, a_slot())
            written = store.now()
        host.reboot(wall)
        with closing(start_process(path, host)) as store:
            assert store.now() == pytest.approx(max(written, wall))
            host.pass_time(10)
            assert store.now() == pytest.approx(max(written, wall) + 10)

    def test_a_file_that_came_from_another_boot_does_not_put_a_running_process_back(
        self, path: Path, tmp_path: Path, make_sqlite: MakeSqlite
    ) -> None:
        host, elsewhere = Host(), Host(wall=1_790_000_000.0 - HOUR)
        elsewhere.boot = "another host's"
        make_sqlite(tmp_path / "other.db")
        with closing(start_process(tmp_path / "other.db", elsewhere)) as other:
            save(other, a_slot())
        with closing(start_process(path, host)) as store:
            before = store.now()
            store.close()
            (tmp_path / "other.db").replace(path)
            host.pass_time(5)
            assert store.now() == pytest.approx(before + 5)
            host.pass_time(5)
            assert store.now() == pytest.approx(before + 10)
            with closing(start_process(path, host, wrong_by=HOUR)) as fresh:
                assert fresh.now() == pytest.approx(before + 10)

    def test_a_user_that_may_only_read_has_the_stored_time(self, path: Path) -> None:
        host = Host()
        with closing(start_process(path, host)) as store:
            first = store.now()
        reader = start_process(path, host, wrong_by=HOUR)
        reader._dialect._mode = "ro"  # type: ignore[attr-defined]
        with closing(reader):
            assert reader.now() == pytest.approx(first)

    @settings(max_examples=25)
    @given(
        steps=st.lists(
            st.tuples(
                st.sampled_from(["pass", "jump", "read", "write", "start"]),
                st.floats(min_value=-700.0, max_value=700.0),
            ),
            max_size=25,
        )
    )
    def test_within_a_boot_time_passes_as_the_monotonic_clock_does(
        self, make_sqlite: MakeSqlite, tmp_path: Path, steps: list[tuple[str, float]]
    ) -> None:
        path = tmp_path / "played.db"
        make_sqlite(path)
        host, numbers = Host(), count()
        with ExitStack() as opened:
            stores = [start_process(path, host)]
            opened.callback(stores[0].close)
            ahead = stores[0].now() - host.monotonic
            for kind, amount in steps:
                match kind:
                    case "pass":
                        host.pass_time(abs(amount))
                    case "jump":
                        host.wall += amount
                    case "start":
                        stores.append(start_process(path, host, amount))
                        opened.callback(stores[-1].close)
                    case "write":
                        save(stores[-1], a_slot(f"s{next(numbers)}"))
                assert [store.now() - host.monotonic for store in stores] == pytest.approx([ahead] * len(stores))


_SEARCH = "-csearch_path=skew,pg_catalog,public"
_CLOCK = """
CREATE FUNCTION skew.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
'SELECT pg_catalog.clock_timestamp() + make_interval(secs => (SELECT seconds FROM skew.clock))'
"""


class Server:
    """A database whose clock a test moves: a schema before pg_catalog has a `clock_timestamp()` of its own."""

    def __init__(self, url: str) -> None:
        self.url = make_url(url).update_query_dict({"options": _SEARCH})
        with closing(SqlStore(PostgresDialect(make_url(url)))) as store, store.engine.begin() as connection:
            for statement in (
                "CREATE SCHEMA skew",
                "CREATE TABLE skew.clock (seconds float8)",
                "INSERT INTO skew.clock VALUES (0)",
                _CLOCK,
            ):
                connection.execute(text(statement))

    def start_process(self, stretch: Callable[[], float] = lambda: 0.0, options: str = "") -> SqlStore:
        """The store of one process; `stretch` is added to its monotonic clock."""
        dialect = PostgresDialect(self.url.update_query_dict({"options": f"{_SEARCH} {options}"}))
        dialect._reference._monotonic = lambda: read_monotonic() + stretch()
        return SqlStore(dialect)

    def jump(self, seconds: float) -> None:
        with closing(SqlStore(PostgresDialect(self.url))) as store, store.engine.begin() as connection:
            connection.execute(text("UPDATE skew.clock SET seconds = seconds + :by"), {"by": seconds})

    def read_offset(self) -> list[float]:
        """The offset, and how often it was changed."""
        with closing(SqlStore(PostgresDialect(self.url))) as store, store.engine.connect() as connection:
            return list(connection.execute(text("SELECT clock_offset, clock_changes FROM cluster")).one())


@pytest.fixture
def server(postgresql_url: str) -> Server:
    return Server(postgresql_url)


@pytest.fixture
def processes(server: Server) -> Iterator[list[SqlStore]]:
    """Two processes that know the time."""
    stores = [server.start_process(), server.start_process()]
    for store in stores:
        store.now()
    yield stores
    for store in stores:
        store.close()


@pytest.mark.parametrize("seconds", [-HOUR, -20.0, 20.0, HOUR])
class TestJumpsOfTheServer:
    def test_time_goes_on(self, server: Server, processes: list[SqlStore], seconds: float) -> None:
        before = [store.now() for store in processes]
        started = read_monotonic()
        server.jump(seconds)
        for _ in range(2):
            for first, store in zip(before, processes, strict=True):
                assert store.now() - first == pytest.approx(read_monotonic() - started, abs=1.5)
        with processes[0].transaction() as transaction:
            assert transaction.now() - before[0] == pytest.approx(read_monotonic() - started, abs=1.5)

    def test_it_is_corrected_once_when_both_see_it_at_once(
        self, server: Server, processes: list[SqlStore], seconds: float
    ) -> None:
        before = processes[0].now()
        server.jump(seconds)
        meeting = Barrier(2)

        def read(store: Store) -> float:
            meeting.wait()
            return store.now()

        with ThreadPoolExecutor(2) as threads:
            times = list(threads.map(read, processes))
        assert times == pytest.approx([before, before], abs=10)
        assert server.read_offset() == [pytest.approx(-seconds, abs=1.5), 1]

    def test_a_process_that_starts_afterwards_agrees(
        self, server: Server, processes: list[SqlStore], seconds: float
    ) -> None:
        server.jump(seconds)
        processes[0].now()
        with closing(server.start_process()) as fresh:
            first, second, third = processes[0].now(), fresh.now(), processes[0].now()
            assert first <= second <= third

    def test_a_second_jump_is_corrected_too(self, server: Server, processes: list[SqlStore], seconds: float) -> None:
        before = processes[0].now()
        for store in processes:
            server.jump(seconds)
            assert store.now() == pytest.approx(before, abs=ABOUT / 2)
            for each in processes:
                each.now()
        assert server.read_offset()[1] == 2

    def test_a_reader_that_may_not_correct_it_goes_on_with_its_own_time(self, server: Server, seconds: float) -> None:
        with closing(server.start_process(options="-cdefault_transaction_read_only=on")) as reader:
            before = reader.now()
            server.jump(seconds)
            assert reader.now() == pytest.approx(before, abs=ABOUT / 2)
            assert server.read_offset() == [0.0, 0]


class TestServersClock:
    def test_a_small_difference_is_the_servers_to_decide(self, server: Server, processes: list[SqlStore]) -> None:
        server.jump(0.5)
        processes[0].now()
        server.jump(-0.5)
        assert processes[0].now() <= processes[0].now()
        assert server.read_offset() == [0.0, 0]

    def test_a_paused_host_whose_own_clock_stood_still_corrects_nothing(
        self, server: Server, processes: list[SqlStore]
    ) -> None:
        """Rows that others wrote meanwhile show that its own time is behind."""
        lost = [0.0]
        with closing(server.start_process(lambda: -lost[0])) as paused:
            before = paused.now()
            # It was paused for an hour: the server's clock and the clocks of the others ran on.
            server.jump(HOUR)
            with processes[0].engine.begin() as connection:
                connection.execute(text("UPDATE leader SET ticked_at = :at"), {"at": before + HOUR})
            assert paused.now() == pytest.approx(before + HOUR, abs=ABOUT)
            assert server.read_offset() == [0.0, 0]

    def test_a_process_that_starts_on_a_clock_behind_the_last_tick_corrects_it_after_a_while(
        self, server: Server, processes: list[SqlStore]
    ) -> None:
        ticked_at = processes[0].now()
        with processes[0].engine.begin() as connection:
            connection.execute(text("UPDATE leader SET ticked_at = :at"), {"at": ticked_at})
        server.jump(-HOUR)
        passed = [0.0]
        with closing(server.start_process(lambda: passed[0])) as fresh:
            assert fresh.now() == pytest.approx(ticked_at, abs=ABOUT)
            assert server.read_offset() == [0.0, 0]
            passed[0] = 6.0
            assert fresh.now() == pytest.approx(ticked_at + 6, abs=ABOUT)
            assert server.read_offset() == [pytest.approx(HOUR, abs=ABOUT), 1]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


def test_the_row_of_the_cluster_comes_with_term_and_token(url: str) -> None:
    with closing(open_store(url)) as store:
        first = store.read_cluster()
        with store.transaction() as transaction:
            transaction.take_term("me")
            transaction.next_tokens(3)
        found = store.read_cluster()
        expected = ClusterRow(
            now=found.now,
            identity=first.identity,
            term=1,
            token=3,
            restores=0,
            principals_version=0,
            leader_term=LeaderTerm(1, "me"),
        )
        assert found == expected
        assert len(found.identity) == 32
        assert found.now >= first.now


def test_a_cluster_without_its_row_is_reported(sqlite_url: str, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM cluster")
    with closing(open_store(sqlite_url)) as store, pytest.raises(StoreUnavailableError, match="leasehold migrate"):
        store.now()
