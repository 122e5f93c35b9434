"""Apply scheduling rules to the database: preview the change, ask before machines, leases or balances are taken away,
change the rules, and request a tick (a run of the scheduler).
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer

from leasehold.cli.connecting import find_rules, find_version
from leasehold.cli.market import prepare_market
from leasehold.cli.output import BAD_INPUT, CommandError, print_error, print_result, shorten
from leasehold.errors import LeaseholdError
from leasehold.texts.values import show_levels, show_seconds
from scheduler.model.input_texts import parse_toml
from scheduler.model.rules import list_image_sources, merge_rules, read_rules
from scheduler.operations.rules.apply import RulesChangedError, apply_rules
from scheduler.operations.rules.images import Found, find_images
from scheduler.operations.rules.preview import Preview, preview_rules
from scheduler.ports import ViewUnavailableError
from scheduler.store.opening import open_store
from workers.configuration import load_settings, read_configuration
from workers.ec2.patterns import find_refused
from workers.settings import Settings

if TYPE_CHECKING:
    from workers.services import Services

MOST_LINES: Final = 20
"""Most lines that are printed for each kind of consequence of new rules, such as machines that go. The output of
`--json` has all of them.
"""


def _open_services(settings: Settings) -> "Services":
    """Return the services with a dispatcher (which sends work to other processes) that sends only the request for a
    tick, a run of the scheduler. All other work stays in the database, where the processes of the stack find it later.

    The imports take a while, and a preview without look-ups on AWS needs none of them.
    """
    from leasehold.client.redis.own_transport import open_wire
    from leasehold.stack.preparation import QuietDispatcher
    from workers.services import Services

    class Kicker(QuietDispatcher):
        def send_tick(self) -> None:
            """Request a tick now. If the request cannot be sent, no error is raised, and the next periodic tick applies
            the rules.
            """
            with suppress(LeaseholdError), closing(open_wire(settings)) as wire:
                wire.send_tick()

    return Services(settings, Kicker)


def apply_file(path: Path, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Apply the rules of the configuration file `path`, or with `dry_run` only print what they would change. `yes`: do
    not ask for confirmation. `as_json`: print JSON.

    Raises InvalidInputError if the file is wrong, StoreUnavailableError if the database cannot be reached, and
    CommandError if Redis fails after the commit. The file may be applied again after any of these errors.
    """
    configuration = read_configuration(path)
    prepare_market(configuration.settings, configuration.rules)
    source = f"leasehold apply {path.name}"
    for name, pool in configuration.rules.pools.items():
        if pool.ec2.names_slot:
            print_error(
                f"note: config.pools.{name}.ec2.user_data names ${{slot}} or ${{launch_id}}: each machine of the pool"
                " is launched by a request of its own"
            )
    for warning in find_refused(configuration.rules, configuration.settings.aws):
        print_error(f"warning: {warning}")
    _carry_out(configuration.settings, configuration.rules_document, source, dry_run=dry_run, yes=yes, as_json=as_json)


def apply_version(version: int, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Apply the rules of an earlier version again, as a new version. Raises CommandError if there is no such version,
    else the same errors as `apply_file`.
    """
    settings = load_settings()
    with closing(open_store(settings.database_url)) as store:
        document = find_version(store, version).document
    _carry_out(settings, document, f"leasehold rules rollback {version}", dry_run=dry_run, yes=yes, as_json=as_json)


def apply_values(values: Sequence[str], *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Apply the rules in force with other values, each given as `KEY=VALUE` with a dotted key and a TOML value. Raises
    CommandError for a text that is none, else the same errors as `apply_file`.
    """
    settings = load_settings()
    with closing(open_store(settings.database_url)) as store:
        stored = find_rules(store)
    document = stored.document
    for text in values:
        try:
            document = merge_rules(document, parse_toml(text))
        except ValueError:
            wanted = "a key and a TOML value, like pools.linux.max_slots=5 or pools.linux.labels.disk='\"ssd\"'"
            raise CommandError(f"expected {wanted}, got {text!r}", BAD_INPUT) from None
    _carry_out(
        settings,
        document,
        f"leasehold rules set {' '.join(values)}",
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
        expected=stored.version,
    )


def _carry_out(
    settings: Settings,
    document: Mapping[str, Any],
    source: str,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    expected: int | None = None,
) -> None:
    """Apply the rules in `document`, or with `dry_run` only print a preview of the change. If the change takes
    machines, leases or balances away, ask first, unless `yes` is true. `source`: the origin of the rules, for their
    history, like "leasehold apply leasehold.toml". `expected`: the version of the rules that must be in force; None:
    the version that the preview compares with, or any.
    """
    images = _find_images(settings, document)
    preview = None
    if dry_run or as_json or not yes:
        # With --yes alone no preview is printed or needed for a question; it takes long on a large database.
        with closing(open_store(settings.database_url)) as store:
            preview = preview_rules(store, document, images=images)
    if preview is not None and dry_run:
        found = {"version": preview.version, "changed": preview.changed, "dry_run": True, **_describe(preview)}
        print_result(found, "\n".join(_write(preview)), as_json=as_json)
        return
    if settings.broker_url is None:
        raise CommandError("no stack runs here or in a folder above, and broker.url is not set")
    if preview is not None and preview.takes_away and not yes:
        if not sys.stdin.isatty():
            raise CommandError(
                f"{_sum_up(preview)}: nothing was changed; --dry-run shows the details, --yes applies the rules"
            )
        for line in _write(preview):
            print_error(line)
        if not typer.confirm(f"{_sum_up(preview)}: apply it?", err=True):
            raise CommandError("the rules were not changed: the answer was not yes")
    ports = _open_services(settings).ports
    try:
        expected = expected or (preview.version if preview else None)
        version, changed = apply_rules(ports, document, source=source, expected=expected, images=images)
    except RulesChangedError as error:
        raise CommandError(str(error)) from None
    except ViewUnavailableError as error:
        # Only the announcement after the commit needs Redis.
        raise CommandError(f"the rules are in force and are announced once Redis is back: {error}") from None
    finally:
        ports.store.close()
    result = {"version": version, "changed": changed, **(_describe(preview) if preview else {})}
    print_result(result, f"rules version {version}" + ("" if changed else ", unchanged"), as_json=as_json)


def _find_images(settings: Settings, document: Mapping[str, Any]) -> dict[str, str]:
    """Return image ids by source, for the pools in `document` that name their image by a source (`ssm:…`, `newest:…`).
    Print a line for each source that cannot be looked up on this host; the health worker looks it up later. Raises
    InvalidInputError for a source that has no image.
    """
    rules = read_rules(dict(document), "")
    found = find_images(_open_services(settings).images, rules) if list_image_sources(rules) else Found({}, {})
    for source, error in found.errors.items():
        print_error(f"{source} was not looked up ({error.category}: {error.code}); the health worker does it later")
    return found.images


def _describe(preview: Preview) -> dict[str, Any]:
    """Return the preview of new rules as a document for `--json`: changes, consequences, and whether machines, leases
    or balances are taken away.
    """
    document = msgspec.to_builtins(preview).items()
    shown = {name: value for name, value in document if name not in {"version", "changed"}}
    return {**shown, "takes_away": preview.takes_away}


def _sum_up(preview: Preview) -> str:
    """Return as one phrase what new rules take away, like "2 machines go, 1 account loses balance"."""
    counts = (
        (len(preview.departures), "machine goes", "machines go"),
        (len(preview.endings), "reservation loses leases", "reservations lose leases"),
        (len(preview.accounts), "account loses balance", "accounts lose balance"),
    )
    return ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts if count)


def _write(preview: Preview) -> list[str]:
    """Return the text of a preview, line by line: the changes of the rules, and what they do to machines, leases,
    accounts and reservations.
    """
    if not preview.changed:
        return [f"rules version {preview.version}, unchanged"]
    lines = [f"changes to rules version {preview.version}:"]
    lines += [f"  {change}" for change in preview.changes] or ["  none: only defaults are written differently"]
    found = list(_list_consequences(preview))
    lines.append("consequences:" if found else "consequences: none in the next tick")
    return [*lines, *(f"  {line}" for line in found)]


def _list_consequences(preview: Preview) -> Iterator[str]:
    yield from _cut(
        f"{each.slot}: {_ACTIONS.get(each.action, each.action)} ({each.reason})"
        + (f": {shorten(each.reservations, MOST_LINES, between=', ', before_more='')}" if each.reservations else "")
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
    yield from _cut(
        f"account {each.account or 'none'}: {each.waiting} waiting would start in "
        f"{_show_wait(each.after)}, not in {_show_wait(each.before)} (median)"
        for each in preview.waits
    )


def _show_wait(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else show_seconds(seconds)


_ACTIONS: Final = {
    "drain": "drains, its leases continue until they end",
    "terminate": "its machine is terminated",
}


def _cut(lines: Iterable[str]) -> Iterator[str]:
    found = list(lines)
    yield from found[:MOST_LINES]
    if len(found) > MOST_LINES:
        yield f"and {len(found) - MOST_LINES} more"
