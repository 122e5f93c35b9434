"""Applying a file's rules to the database, with the kick that makes the next tick see them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from leasehold.cli.failures import CommandError
from leasehold.errors import LeaseholdError
from leasehold.stack.preparing import QuietDispatcher
from leasehold.wire import Wire
from scheduler.operations.apply import apply_rules
from workers.commented import format_value
from workers.configuration import read_configuration
from workers.services import Services
from workers.settings import Settings


class _Kicker(QuietDispatcher):
    """Sends the tick message of a kick; what else there is to send, `recover` sends."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def send_tick(self) -> None:
        """See TickingDispatcher.send_tick. A tick that cannot be asked for comes with the interval."""
        wire = Wire(self._settings.broker_url or "", self._settings.view.prefix, self._settings.view_url)
        try:
            wire.send_tick()
        except LeaseholdError:
            return
        finally:
            wire.close()


def apply_file(path: Path) -> tuple[int, bool]:
    """The version of the rules then in force, and whether they changed.

    Raises InvalidInputError, StoreUnavailableError, ViewUnavailableError (after the commit: it may be repeated).
    """
    configuration = read_configuration(path)
    settings = configuration.settings
    if settings.broker_url is None:
        raise CommandError("no stack runs here or in a folder above, and broker.url is not set")
    engine = Services(settings, lambda: _Kicker(settings)).engine
    return apply_rules(engine, configuration.rules_document)


def format_toml(document: Mapping[str, Any]) -> str:
    """A document as TOML: plain values first, then a table for each table in it."""
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
