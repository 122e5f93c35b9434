"""Backups of a database: a backup is written while the database is in use, checked when it is read, and restored in one
transaction.

A backup of SQLite is a database file. A backup of PostgreSQL is an archive of `pg_dump` (format `custom`). Both can
also be put in place with the database's own tools; afterwards run `leasehold restore --in-place`.
"""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, Literal, cast

import msgspec
from sqlalchemy import URL

from scheduler.ports import StoreUnavailableError
from scheduler.protocol.database_urls import POOLING
from scheduler.protocol.input_files import open_input
from scheduler.store.opening import MEMORY, choose_dialect, parse_url
from scheduler.store.revisions import list_revisions
from scheduler.store.sqlite import BUSY_SECONDS

Kind = Literal["sqlite", "postgresql"]

_SQLITE: Final = b"SQLite format 3\x00"
_ARCHIVE: Final = b"PGDMP"
_NOT_OURS: Final = "expected a file that `leasehold backup` has written"


class BackupError(StoreUnavailableError):
    """Raised when a backup cannot be written, read or restored. The message gives the reason in one line."""


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about one backup file: its path, its kind of database, the identity of the cluster, the schema
    revision, and its size in bytes.
    """

    path: str
    kind: Kind
    identity: str
    revision: str
    bytes: int


def back_up(url: str, path: Path, *, overwrite: bool = False) -> Backup:
    """Write a backup of the database at `url` to the file `path`, as of one moment, while the database is in use.
    Return the facts about the backup.

    The file has the mode 0600. An existing file is kept unless `overwrite`. A backup that fails leaves no file. Raises
    BackupError.
    """
    kind = _find_kind(url)
    if kind == "postgresql":
        _check_direct(url)
    if path.exists() and not overwrite:
        raise BackupError(f"{path}: the file exists: nothing was written (--force overwrites it)")
    if not path.name:
        raise BackupError(f"{path}: expected the name of a file")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        if kind == "sqlite":
            # This mode keeps everything in one file. In WAL mode the log would have to be copied with it.
            source = _find_file(url)
            _copy_sqlite(source, part, mode="rw", journal="DELETE", database=source)
        else:
            _run(["pg_dump", "--format=custom", f"--file={part}", f"--dbname={_without_password(url)}"], url)
        found = read_backup(part)
        with part.open("rb") as file:
            # The file is on the disk before it gets its name, so that it survives a power failure.
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return msgspec.structs.replace(found, path=str(path))


def read_backup(path: Path) -> Backup:
    """Check the backup file at `path` and return the facts about it. Raises BackupError if the file is no backup, is
    damaged, or was written by a newer version of Leasehold.
    """
    with open(path, "rb", opener=open_input) as file:
        head = file.read(len(_SQLITE))
    if head == _SQLITE:
        identity, revision = _read_sqlite(path)
        kind: Kind = "sqlite"
    elif head.startswith(_ARCHIVE):
        # The archive's own text has the values, so no database is needed.
        identity, revision = (
            _read_value(path, "cluster", "identity"),
            _read_value(path, "alembic_version", "version_num"),
        )
        kind = "postgresql"
    else:
        raise BackupError(f"{path}: {_NOT_OURS}")
    if revision not in list_revisions():
        raise BackupError(
            f"{path}: the backup is of a newer version (revision {revision}): upgrade Leasehold on this host"
        )
    return Backup(path=str(path), kind=kind, identity=identity, revision=revision, bytes=path.stat().st_size)


def put_back(backup: Backup, url: str) -> None:
    """Replace the contents of the database at `url` by those of the backup, in one transaction. Raises BackupError.

    The transaction also adds 1 to the database's number of restores. Processes that use the database see the new
    number, so a transaction that began before the restore is refused (Store.accept_restores).
    """
    kind = _find_kind(url)
    if kind == "postgresql":
        _check_direct(url)
    if kind != backup.kind:
        names = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
        raise BackupError(
            f"{backup.path}: expected a backup of {names[kind]}, as in database.url,"
            f" got a backup of {names[backup.kind]}"
        )
    if kind == "sqlite":
        target = _find_file(url)
        if not target.parent.is_dir():
            raise BackupError(f"{target}: there is no such directory")
        _copy_sqlite(Path(backup.path), target, mode="rwc", journal="WAL", database=target, change=_COUNT_RESTORE)
    else:
        _load_archive(backup.path, url)


_COUNT_RESTORE: Final = "UPDATE cluster SET restores = restores + 1"
_TO_SCRIPT: Final = ("pg_restore", "--clean", "--if-exists", "--no-owner", "--file=-")
_RUN_SCRIPT: Final = ("psql", "--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1", "--file=-")


def _load_archive(path: str, url: str) -> None:
    """Load an archive of pg_dump into the database at `url`, and add 1 to the column `cluster.restores`, the number of
    restores (_COUNT_RESTORE). Both are done in one transaction. Raises BackupError.

    pg_restore cannot execute an additional statement in its transaction. So pg_restore writes its statements as text,
    and psql executes them. psql commits at the end of its input; if pg_restore fails, psql is killed before that.
    """
    to_script = [_find_program(_TO_SCRIPT[0]), *_TO_SCRIPT[1:], path]
    run_script = [_find_program(_RUN_SCRIPT[0]), *_RUN_SCRIPT[1:], f"--dbname={_without_password(url)}"]
    with TemporaryFile() as printed:
        streams: dict[str, Any] = {"stderr": printed, "env": _make_environment(url)}
        read = subprocess.Popen(to_script, stdout=subprocess.PIPE, **streams)  # noqa: S603 - fixed command
        write = subprocess.Popen(run_script, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, **streams)  # noqa: S603
        script, target = cast("IO[bytes]", read.stdout), cast("IO[bytes]", write.stdin)
        try:
            # A broken pipe means that psql has failed; its message is in `printed`.
            with suppress(BrokenPipeError):
                shutil.copyfileobj(script, target)
                if read.wait() == 0:
                    # The script has emptied the search path. The end of the input lets psql commit.
                    write.communicate(f"RESET search_path; {_COUNT_RESTORE};\n".encode())
        finally:
            for process in (write, read):
                process.kill()
                process.wait()
            script.close()
            with suppress(BrokenPipeError):  # psql has ended before it read everything
                target.close()
        if read.returncode or write.returncode:
            printed.seek(0)
            raise BackupError(_find_reason(printed.read().decode(errors="replace"), url))


def _find_kind(url: str) -> Kind:
    if url == MEMORY:
        raise BackupError("a database in memory has no backup")
    choose_dialect(url, lambda: 0.0)
    return "sqlite" if parse_url(url).drivername == "sqlite" else "postgresql"


def _check_direct(url: str) -> None:
    """Raise BackupError if a pooler is between this host and the server. pg_dump and psql change settings of their
    session, like search_path, which the pooler would give to others afterwards.
    """
    dialect = choose_dialect(url)
    engine = dialect.create_engine()
    try:
        with suppress(*dialect.errors), engine.connect() as connection:
            # Another error is left to the program, which reports it.
            dialect.check_direct(connection)
    except StoreUnavailableError as error:
        raise BackupError(str(error)) from None
    finally:
        dialect.dispose(engine)


def _find_file(url: str) -> Path:
    return Path(str(parse_url(url).database)).absolute()


def _copy_sqlite(
    source: Path, target: Path, *, mode: str, journal: str, database: Path, change: str | None = None
) -> None:
    """Copy all pages of the SQLite database `source` to the database `target` in one transaction, so that processes
    that use the target see all of the pages or none.

    `mode`: how the target is opened (`rw` or `rwc`, SQLite's URI parameter). `journal`: the journal mode of the target
    afterwards. `database`: the file that errors name. `change`: a statement that changes the copied contents before
    they are in the target. Raises BackupError.
    """
    try:
        with closing(_open_sqlite(source, "ro")) as read, closing(_open_sqlite(target, mode)) as write:
            if change is None:
                read.backup(write)
            else:
                # An empty name: a temporary database that SQLite removes when it is closed.
                with closing(sqlite3.connect("")) as changed:
                    read.backup(changed)
                    changed.execute(change)
                    changed.commit()
                    changed.backup(write)
            write.execute(f"PRAGMA journal_mode = {journal}")
    except sqlite3.Error as error:
        raise BackupError(f"{database}: {error}") from None


def _read_sqlite(path: Path) -> tuple[str, str]:
    try:
        with closing(_open_sqlite(path, "ro")) as connection:
            if connection.execute("PRAGMA quick_check").fetchone() != ("ok",):
                raise BackupError(f"{path}: the file is damaged")
            (revision,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            (identity,) = connection.execute("SELECT identity FROM cluster").fetchone()
            return str(identity), str(revision)
    except (sqlite3.Error, TypeError) as error:
        raise BackupError(f"{path}: {_NOT_OURS} ({error})") from None


def _open_sqlite(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=BUSY_SECONDS)


def _read_value(path: Path, table: str, column: str) -> str:
    """Return the value of a column of a table with one row, from a PostgreSQL backup file. Raises BackupError if the
    file does not contain it.
    """
    lines = iter(_run(["pg_restore", "--data-only", f"--table={table}", "--file=-", str(path)]).splitlines())
    for line in lines:
        if line.startswith("COPY "):
            columns = line[line.index("(") + 1 : line.index(")")].split(", ")
            row = next(lines, "").split("\t")
            if column in columns and len(row) == len(columns):
                return row[columns.index(column)]
    raise BackupError(f"{path}: {_NOT_OURS}")


def _without_password(url: str) -> str:
    """Return the database URL without its password, for the arguments of a program, which every user of the host can
    see. Of several hosts the program uses the one that accepts writes.
    """
    parsed = parse_url(url)
    query = {**({"target_session_attrs": "read-write"} if "host" in parsed.query else {}), **parsed.query}
    query.pop(POOLING, None)
    bare = URL.create("postgresql", parsed.username, None, parsed.host, parsed.port, parsed.database, query)
    return bare.render_as_string()


def _run(command: Sequence[str], url: str | None = None) -> str:
    """Run a program of PostgreSQL with the password of `url`, and return its output. If the program fails, raise
    BackupError with the first line of its messages that contains "error".
    """
    done = subprocess.run(  # noqa: S603 - fixed commands, no shell
        [_find_program(command[0]), *command[1:]],
        env=_make_environment(url),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BackupError(_find_reason(done.stderr, url))
    return done.stdout


def _find_program(name: str) -> str:
    program = shutil.which(name)
    if program is None:
        raise BackupError(
            f"{name} is not installed: a backup of PostgreSQL needs its client programs, at least of the"
            " server's version (Debian: `apt install postgresql-client`)"
        )
    return program


def _make_environment(url: str | None) -> dict[str, str]:
    """Return the environment for a program of PostgreSQL. It contains the password of `url`, because other users of the
    host can see a program's arguments, but not its environment.
    """
    password = parse_url(url).password if url else None
    return {**os.environ, "PGCONNECT_TIMEOUT": "5", **({"PGPASSWORD": password} if password else {})}


def _find_reason(printed: str, url: str | None) -> str:
    """Return the first of the printed lines that contains "error", else the first line, without the password of
    `url`.
    """
    lines = printed.splitlines()
    line = next((each for each in lines if "error" in each.lower()), lines[0] if lines else "it printed no reason")
    password = parse_url(url).password if url else None
    return line.replace(password, "***") if password else line
