"""Apply rules to the database: preview the change, ask before anything is taken away, then request a tick."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import typer

from leasehold.cli.failures import CommandError, print_error
from leasehold.cli.output import print_json, print_thing, show_levels
from leasehold.client.own_transport import open_wire
from leasehold.errors import LeaseholdError
from leasehold.stack.preparation import QuietDispatcher
from scheduler.operations.apply import RulesChangedError, apply_rules
from scheduler.operations.preview import Preview, preview_rules
from workers.config_template import format_value
from workers.configuration import load_settings, read_configuration
from workers.services import Services
from workers.settings import Settings

MOST_LINES: Final = 20
"""Lines printed for each kind of consequence; `--json` prints all."""


class _Kicker(QuietDispatcher):
    """Sends the request for a tick; other messages stay in the outbox until `recover` sends them."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def send_tick(self) -> None:
        """See TickingDispatcher.send_tick. If the request cannot be sent, the next tick comes with the interval."""
        with suppress(LeaseholdError), closing(open_wire(self._settings)) as wire:
            wire.send_tick()


def apply_file(path: Path, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Apply the rules of a file, or with `dry_run` print what they would change.

    Raises InvalidInputError, StoreUnavailableError, and ViewUnavailableError (after the commit; it is safe to repeat).
    """
    configuration = read_configuration(path)
    change = _Change(configuration.settings, configuration.rules_document, f"leasehold apply {path.name}")
    change.carry_out(dry_run=dry_run, yes=yes, as_json=as_json)


def apply_version(version: int, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Apply the rules of an earlier version as a new version. Raises like `apply_file`."""
    settings = load_settings()
    with closing(Services(settings, QuietDispatcher).open_store()) as store:
        found = store.read_rules_history(version=version)
    if not found:
        raise CommandError(f"there is no version {version} of the rules: `leasehold rules history` lists them")
    change = _Change(settings, found[0].document, f"leasehold rules rollback {version}")
    change.carry_out(dry_run=dry_run, yes=yes, as_json=as_json)


class _Change:
    """A rules document that is to be applied."""

    def __init__(self, settings: Settings, document: Mapping[str, Any], source: str) -> None:
        self._settings, self._document, self._source = settings, document, source
        self._services = Services(settings, lambda: _Kicker(settings))

    def carry_out(self, *, dry_run: bool, yes: bool, as_json: bool) -> None:
        """Preview the change and apply it unless `dry_run`. If it takes something away and not `yes`, ask before."""
        if yes and not dry_run and not as_json:
            # The preview would be neither shown nor needed for a question, and plans over a large database take long.
            self._report(*self._apply(), None)
            return
        with closing(self._services.open_store()) as store:
            preview = preview_rules(store, self._document)
        if dry_run:
            self._show(preview, as_json)
            return
        self._check_broker()
        if preview.takes_away and not yes:
            _confirm(preview)
        self._report(*self._apply(preview.version), preview if as_json else None)

    def _check_broker(self) -> None:
        if self._settings.broker_url is None:
            raise CommandError("no stack runs here or in a folder above, and broker.url is not set")

    def _apply(self, expected: int | None = None) -> tuple[int, bool]:
        self._check_broker()
        ports = self._services.ports
        try:
            return apply_rules(ports, self._document, source=self._source, expected=expected)
        except RulesChangedError as error:
            raise CommandError(str(error)) from None
        finally:
            ports.store.close()

    @staticmethod
    def _report(version: int, changed: bool, preview: Preview | None) -> None:
        if preview is not None:
            print_json({"version": version, "changed": changed, **_describe(preview)})
        else:
            print_thing(f"rules version {version}" + ("" if changed else ", unchanged"))

    def _show(self, preview: Preview, as_json: bool) -> None:
        if as_json:
            print_json({"version": preview.version, "changed": preview.changed, "dry_run": True, **_describe(preview)})
        else:
            print_thing("\n".join(_write(preview)))


def _describe(preview: Preview) -> dict[str, Any]:
    """Return the preview for `--json`: changes, consequences and whether something is taken away."""
    document: dict[str, Any] = msgspec.to_builtins(preview)
    for name in ("version", "changed"):
        del document[name]
    return document | {"takes_away": preview.takes_away}


def _confirm(preview: Preview) -> None:
    """Ask on a terminal whether to continue. Raises CommandError unless the answer is yes."""
    if not sys.stdin.isatty():
        raise CommandError(f"{_sum_up(preview)}: nothing was changed; --dry-run shows the details, --yes applies it")
    for line in _write(preview):
        print_error(line)
    if not typer.confirm(f"{_sum_up(preview)}: apply it?", err=True):
        raise CommandError("nothing was changed")


def _sum_up(preview: Preview) -> str:
    """Return what is taken away in one phrase, like "2 machines go, 1 account loses balance"."""
    counts = (
        (len(preview.departures), "machine goes", "machines go"),
        (len(preview.endings), "reservation loses leases", "reservations lose leases"),
        (len(preview.accounts), "account loses balance", "accounts lose balance"),
    )
    return ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts if count)


def _write(preview: Preview) -> list[str]:
    """Return the changes and their consequences as lines for people."""
    if not preview.changed:
        return [f"rules version {preview.version}, unchanged"]
    lines = [f"changes to rules version {preview.version}:"]
    lines += [f"  {change}" for change in preview.changes] or ["  none: only defaults are written differently"]
    found = list(_list_consequences(preview))
    lines.append("consequences:" if found else "consequences: none that the next tick decides")
    return [*lines, *(f"  {line}" for line in found)]


def _list_consequences(preview: Preview) -> Iterator[str]:
    yield from _cut(
        f"{each.slot}: {_ACTIONS.get(each.action, each.action)} ({each.reason})" + _name_holders(each.reservations)
        for each in preview.departures
    )
    yield from _cut(f"{each.reservation}: {each.action} ({each.reason})" for each in preview.endings)
    yield from _cut(
        f"account {each.account}: balance {show_levels(each.before)} -> "
        + ("forgotten" if each.after is None else show_levels(each.after))
        for each in preview.accounts
    )
    yield from _cut(
        f"{each.reservation} can no longer be served: {each.code}: {each.detail}" for each in preview.unservable
    )
    yield from (f"pool {pool}: launches {count} now" for pool, count in preview.launches.items())


_ACTIONS: Final = {
    "drain": "drains, its leases continue until they end",
    "terminate": "its machine is terminated",
}


def _name_holders(reservations: tuple[str, ...]) -> str:
    if not reservations:
        return ""
    shown = ", ".join(reservations[:MOST_LINES])
    return f": {shown}" + (f" and {len(reservations) - MOST_LINES} more" if len(reservations) > MOST_LINES else "")


def _cut(lines: Iterable[str]) -> Iterator[str]:
    found = list(lines)
    yield from found[:MOST_LINES]
    if len(found) > MOST_LINES:
        yield f"and {len(found) - MOST_LINES} more"


def format_toml(document: Mapping[str, Any]) -> str:
    """Return a document as TOML: plain values first, then its tables."""
    return "\n".join(_format_table(document, ())).strip()


def _format_table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    plain = {key: value for key, value in table.items() if key not in inner}
    if path and (plain or not inner):
        yield f"\n[{'.'.join(path)}]"
    for key, value in plain.items():
        yield f"{_quote(key)} = {format_value(value)}"
    for key, value in inner.items():
        yield from _format_table(value, (*path, _quote(key)))


def _quote(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else format_value(key)
