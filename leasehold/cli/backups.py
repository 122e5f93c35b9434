"""The commands `leasehold backup`, which copies the database into a file, and `leasehold restore`, which replaces the
database by such a copy and then reconciles it with Redis and with the machines.
"""

import contextlib
import os
import sys
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, cast

import typer

from leasehold.cli.connecting import load_settings
from leasehold.cli.output import BAD_INPUT, AsJson, CommandError, print_result
from leasehold.cli.root import app, example
from leasehold.client.discovery import URL_VARIABLE, find_running

if TYPE_CHECKING:
    from scheduler.model.reservations import Reservation
    from scheduler.operations.ports import Ports
    from scheduler.operations.restore import Restored
    from scheduler.ports import Fleet, Remembered
    from scheduler.store.backup import Backup

_PAUSE_SECONDS: Final = 0.1
MARGIN_SECONDS: Final = 5.0
"""A restore waits for the end of the scheduler's lock. It gives up after the duration of the lock plus this number of
seconds.
"""


@app.command(epilog=example("leasehold backup leasehold.backup"))
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a copy of the database into a file.

    The stack may run meanwhile: the copy is a consistent state. Only the file's owner can read the file. A copy of a
    PostgreSQL database needs the program pg_dump.
    """
    url = load_settings().database_url
    from scheduler.store.backup import back_up

    found = back_up(url, file, overwrite=force)
    print_result(
        found,
        f"wrote {file}: cluster {found.identity}, revision {found.revision}, {found.bytes} bytes",
        as_json=as_json,
    )


@app.command(epilog=example("leasehold restore leasehold.backup", "leasehold restore --in-place --yes"))
def restore(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="A file written by `leasehold backup`.")] = None,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place", help="Do only the steps that follow after the database was restored by other means."
        ),
    ] = False,
    resubmit: Annotated[
        bool, typer.Option("--resubmit", help="Submit lost reservations again if they had no lease.")
    ] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take over a Redis that belongs to another cluster.")
    ] = False,
    without_redis: Annotated[
        bool, typer.Option("--without-redis", help="Continue without Redis: changes after the backup are lost.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Restore a backup and reconcile it with what happened later.

    Stop the stack first; a process that still runs pauses during the restore. Terms (numbers of leaders) and fencing
    tokens continue above all earlier ones, machines are adopted or terminated, holders of lost leases get a notice, and
    lost reservations are listed.
    """
    if (file is None) != in_place:
        raise CommandError("expected either FILE or --in-place", BAD_INPUT)
    with contextlib.ExitStack() as ends:
        run = _Restore(file, ends, take_over=take_over, without_redis=without_redis)
        run.confirm(yes=yes)
        restored = run.carry_out(resubmit=resubmit)
    print_result(restored, "\n".join(_describe(restored)), as_json=as_json)


class _Restore:
    """One run of `leasehold restore`: it checks the backup file, replaces the database, and reconciles the database
    with Redis and with the machines.
    """

    def __init__(self, file: Path | None, ends: contextlib.ExitStack, *, take_over: bool, without_redis: bool) -> None:
        """Read the backup and the settings. `ends` stops at its end what the restore starts."""
        from leasehold.stack.configuration import uses_emulator
        from leasehold.stack.preparation import QuietDispatcher
        from scheduler.store.backup import read_backup
        from workers.services import Services

        self._take_over, self._without_redis = take_over, without_redis
        self._backup: Backup | None = read_backup(file) if file else None
        # Commands take the environment of the stack, so it is looked for before the settings are loaded.
        self._running = None if os.environ.get(URL_VARIABLE) else find_running()
        self._settings = load_settings()
        is_stopped = self._settings.broker_url is None
        if is_stopped:
            import tempfile

            from workers.embedded_redis import RedisStartError, start_redis
            from workers.setting_types import SecretText
            from workers.settings import BrokerSettings

            if not self._settings.database_url.startswith("sqlite:"):
                raise CommandError(
                    "broker.url: expected the URL of the stack's Redis (LEASEHOLD_BROKER__URL), got nothing"
                )
            folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-restore-")))
            try:
                server = start_redis(folder)
            except RedisStartError as error:
                raise CommandError(str(error)) from None
            ends.callback(server.stop)
            self._settings = self._settings.model_copy(update={"broker": BrokerSettings(url=SecretText(server.url))})
        self._services = Services(self._settings, QuietDispatcher)
        if is_stopped and uses_emulator(self._settings.aws):
            self._services.ports.fleet = cast("Fleet", _EndedEmulator())

    def confirm(self, *, yes: bool) -> None:
        """Unless `yes`, ask on a terminal whether to restore the database. Raises CommandError if the answer is not
        yes, or if standard input is no terminal.
        """
        from workers.logs import mask_text

        where = mask_text(self._settings.database_url)
        what = f"replace {where} by {self._backup.path}" if self._backup else f"reconcile {where} as it is"
        if self._running is not None:
            _print_progress(
                f"a stack runs in {self._running.folder}: `leasehold down` stops it; else it pauses during the restore"
            )
        if yes:
            return
        if not sys.stdin.isatty():
            raise CommandError(f"nothing was changed: --yes is required to {what}", BAD_INPUT)
        if not typer.confirm(f"Do you want to {what}?", err=True):
            raise CommandError("nothing was restored: the answer was not yes")

    def carry_out(self, *, resubmit: bool) -> "Restored":
        """Run all steps of the restore in order and return the result.

        A mark in Redis pauses all processes meanwhile. If a step fails after the database was replaced, the mark stays,
        so that no process works on a half restored state. The restore must then be repeated.
        """
        from scheduler.operations.restore import restore as reconcile
        from scheduler.store.backup import put_back
        from scheduler.store.migrating import migrate

        ports = self._services.ports
        remembered, kept = self._read_redis(ports)
        remembered = self._add_present(remembered)
        if self._backup is not None:
            try:
                put_back(self._backup, self._settings.database_url)
            except BaseException:
                # Also on Ctrl-C: the database is unchanged, so the paused processes may continue.
                self._end_restore(ports, remembered)
                raise
            _print_progress(f"{self._backup.path} is in place")
        migrate(self._settings.database_url)
        try:
            return reconcile(ports, remembered, kept, resubmit=resubmit, progress=_print_progress)
        finally:
            ports.store.close()

    def _read_redis(self, ports: "Ports") -> "tuple[Remembered, dict[str, Reservation]]":
        """Pause all processes, and return two things that Redis remembers: the record of the cluster with its highest
        term (number of a leadership) and fencing token, and the cluster's reservations by id.

        If Redis does not answer and --without-redis is given, continue without Redis: nothing is remembered then, and
        no holder gets a notice.
        """
        from scheduler.ports import Remembered, ViewUnavailableError
        from scheduler.view.memory import MemoryMeter, MemoryNotifier, MemoryViewCache

        try:
            return self._pause_processes(ports)
        except ViewUnavailableError as error:
            if not self._without_redis:
                raise CommandError(f"{error} (--without-redis continues without what Redis remembers)") from None
        ports.view_cache, ports.notifier = MemoryViewCache(), MemoryNotifier()
        ports.meter, ports.record = MemoryMeter(), None
        return Remembered(), {}

    def _pause_processes(self, ports: "Ports") -> "tuple[Remembered, dict[str, Reservation]]":
        from scheduler.operations.membership import CHECK_SECONDS
        from scheduler.ports import Remembered

        record = ports.record
        if record is None:
            raise CommandError("a restore needs the stack's Redis, and these settings have none")
        remembered = record.read()
        ours = self._identity
        if remembered.identity not in {None, ours} and not self._take_over:
            whose = "backup" if self._backup else "database"
            raise CommandError(
                f"Redis belongs to cluster {remembered.identity}, the {whose} to cluster {ours}: nothing was changed"
                " (--take-over takes this Redis over)"
            )
        record.begin_restore()
        until = time.monotonic() + self._settings.ticks.lock_seconds + MARGIN_SECONDS
        # Every CHECK_SECONDS a process looks for the mark that pauses it; work begun before that must end first.
        time.sleep(2 * CHECK_SECONDS)
        while ports.lock.seconds_until_free() > 0:
            if time.monotonic() > until:
                self._end_restore(ports, remembered)
                raise CommandError(
                    "nothing was restored: a worker still holds the scheduler's lock; stop the workers and repeat"
                )
            # The scheduler's lock expires by itself, without a message to wait for.
            time.sleep(_PAUSE_SECONDS)
        if remembered.identity not in {None, self._identity}:
            return Remembered(), {}
        kept = ports.view_cache.read_kept()
        _print_progress(f"Redis remembers {len(kept)} reservations")
        return remembered, kept

    def _end_restore(self, ports: "Ports", remembered: "Remembered") -> None:
        """Remove the mark in Redis that pauses all processes, because the restore is given up before it changed the
        database. `remembered`: the highest term and fencing token that Redis had before the restore, which are written
        to Redis again.
        """
        if ports.record is not None:
            ports.record.end_restore(remembered.identity or self._identity, remembered.term, remembered.token)

    @cached_property
    def _identity(self) -> str:
        """The id of the cluster whose database is restored."""
        return self._backup.identity if self._backup else self._services.ports.store.read_cluster().identity

    def _add_present(self, remembered: "Remembered") -> "Remembered":
        """Return `remembered`, the numbers that Redis has, with the larger term (number of a leadership) and the larger
        fencing token of Redis and of the database that will be replaced. If that database cannot be read, return
        `remembered` unchanged.

        No term or token may be issued twice, and the database may have issued higher ones than Redis remembers.
        """
        import msgspec

        from scheduler.ports import StoreUnavailableError
        from scheduler.store.opening import open_store

        try:
            with contextlib.closing(open_store(self._settings.database_url)) as store:
                row = store.read_cluster()
        except StoreUnavailableError:
            return remembered
        term, token = max(row.term, remembered.term), max(row.token, remembered.token)
        return msgspec.structs.replace(remembered, term=term, token=token)


class _EndedEmulator:
    """The EC2 of a stopped embedded stack: its machines ended with it, and the next start of the stack records that."""

    def __getattr__(self, name: str) -> object:
        from scheduler.ports import CloudError

        raise CloudError("transient", "Stopped", "the emulator does not run; its machines ended with it")


def _print_progress(text: str) -> None:
    sys.stderr.write(f"  {text}\n")
    sys.stderr.flush()


def _describe(restored: "Restored") -> list[str]:
    """Return the result of a restore as lines for people: the term and fencing token from which the cluster continues,
    the reservations that ended, wait again or were lost, and the machines.
    """
    lines = [f"restored: cluster {restored.identity}, term {restored.term}, token {restored.token}"]
    for text, names in (
        ("ended according to Redis", restored.ended),
        ("wait again, because their lease had ended", restored.requeued),
        ("holders notified that their lease has ended", restored.notified),
    ):
        if names:
            lines.append(f"{len(names)} {text}: {', '.join(names)}")
    if restored.lost:
        lines.append(f"{len(restored.lost)} reservations that only Redis has:")
    for lost in restored.lost:
        where = f" on {', '.join(lost.slots)} with token {lost.token}" if lost.slots else ""
        lines.append(f"  {lost.id}: was {lost.phase}{where}; {lost.outcome}")
    found = restored.machines
    if found is None:
        return [*lines, f"machines: left to the health worker ({restored.cloud_fault})"]
    return [*lines, f"machines: {found.settled + found.adopted} adopted, {found.ended} ended"]
