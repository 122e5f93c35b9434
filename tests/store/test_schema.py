"""The error for a database with another schema names which of the two is older, and the remedy."""

from contextlib import closing
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from scheduler.ports import StoredAnswer, StoreUnavailableError
from scheduler.store.opening import find_fault, open_store
from scheduler.store.revisions import find_fault_of_file, find_sqlite_file, judge_revision, list_revisions
from tests.store.conftest import SQL_KINDS

SCRIPTS = Path(__file__).parents[2] / "scheduler" / "store" / "migrations"
FIRST, HEAD = list_revisions()[0], list_revisions()[-1]


@pytest.fixture(params=SQL_KINDS)
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def change(url: str, *statements: str) -> None:
    """What a migration of another version did to the database."""
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


RENAMED = "ALTER TABLE slots RENAME COLUMN uses TO times_used"


@pytest.fixture
def other(url: str) -> str:
    """A database with a column of another name than this program knows."""
    change(url, RENAMED)
    return url


def complaint_of(url: str) -> str:
    with closing(open_store(url)) as store, pytest.raises(StoreUnavailableError) as found:
        store.find_slots()
    assert "\n" not in str(found.value)
    return str(found.value)


def test_the_revisions_are_those_of_alembic() -> None:
    script = ScriptDirectory(str(SCRIPTS))
    assert list_revisions() == tuple(each.revision for each in script.walk_revisions())[::-1]


@pytest.mark.parametrize(
    ("current", "relation", "remedy"),
    [
        (None, "has no tables of Leasehold", "run `leasehold migrate`"),
        (
            "0001",
            f"is older than this program (revision 0001, the program migrates from {FIRST} on)",
            "run `leasehold migrate` of the last commit before release 0.1.0 first",
        ),
        (
            "0999",
            f"is newer than this program (revision 0999, the program knows up to {HEAD})",
            "upgrade Leasehold on this host",
        ),
    ],
)
def test_each_revision_is_judged_with_what_mends_it(current: str | None, relation: str, remedy: str) -> None:
    judged = judge_revision(current)
    assert judged is not None
    assert judged.endswith(f"{relation}: {remedy}")
    assert judge_revision(HEAD) is None


def test_a_statement_that_fails_on_a_newer_schema_names_it(other: str) -> None:
    change(other, "UPDATE alembic_version SET version_num = '0999'")
    complaint = complaint_of(other)
    assert "newer than this program (revision 0999" in complaint
    assert "upgrade Leasehold on this host" in complaint
    assert "leasehold migrate" not in complaint


def test_a_statement_that_fails_on_an_older_schema_names_it(other: str) -> None:
    change(other, "UPDATE alembic_version SET version_num = '0001'")
    assert "older than this program (revision 0001" in complaint_of(other)


def test_a_column_of_a_newer_schema_without_a_value_is_no_conflict_of_writers(url: str) -> None:
    columns = "id TEXT PRIMARY KEY, at DOUBLE PRECISION, answer TEXT, author TEXT NOT NULL"
    change(url, "DROP TABLE requests", f"CREATE TABLE requests ({columns})")
    change(url, "UPDATE alembic_version SET version_num = '0999'")
    with (
        closing(open_store(url)) as store,
        pytest.raises(StoreUnavailableError, match="newer than this program"),
        store.transaction() as transaction,
    ):
        transaction.save_answers([StoredAnswer("q1", 1.0, {"ok": True})])


def test_the_program_s_own_schema_with_a_damaged_table_blames_no_version(other: str) -> None:
    complaint = complaint_of(other)
    assert "uses" in complaint
    assert "this program" not in complaint


def test_tables_that_were_never_made_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    assert "no tables of Leasehold: run `leasehold migrate`" in complaint_of(f"sqlite:///{tmp_path}/empty.db")


@pytest.mark.parametrize(
    "statement", ["", "UPDATE alembic_version SET version_num = '0001'", "DELETE FROM alembic_version"]
)
def test_a_file_is_judged_without_sqlalchemy_as_with_it(sqlite_url: str, statement: str) -> None:
    if statement:
        change(sqlite_url, statement)
    file = find_sqlite_file(sqlite_url)
    assert file is not None
    assert find_fault_of_file(file) == find_fault(sqlite_url)


@pytest.mark.parametrize("content", [None, "", "no database at all, but longer than the header of one" * 9])
def test_what_is_no_database_is_judged_without_sqlalchemy_as_with_it(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ä b.db"
    if content is not None:
        file.write_text(content)
    assert find_fault_of_file(file) == find_fault(f"sqlite:///{file}")
    assert find_fault_of_file(tmp_path) == find_fault(f"sqlite:///{tmp_path}")


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///a.db?mode=ro", "sqlite:///a%20b", "memory://"]
)
def test_a_url_that_names_no_plain_file_is_left_to_sqlalchemy(url: str) -> None:
    assert find_sqlite_file(url) is None
    assert find_sqlite_file("postgresql://user:word@host/name") is None
    assert find_sqlite_file("sqlite:///a.db") == Path("a.db")
