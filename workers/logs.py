"""Write log lines as text for people or as JSON for programs. A line has a sentence, an `action` that stays the same in
later versions, and ids.

The lines of all libraries (Celery, boto3) are masked in the same way: passwords in URLs, tokens and user data are
hidden.
"""

import logging
import re
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, TextIO

from scheduler.protocol.masking import MASK, mask_urls
from scheduler.protocol.visible import make_visible


@contextmanager
def _hide(module: str) -> Iterator[None]:
    """For the time of this `with` block, let imports not find the module `module`, unless it is imported already."""
    is_hidden = sys.modules.setdefault(module, None) is None  # type: ignore[arg-type]  # None: the module is not found
    try:
        yield
    finally:
        if is_hidden:
            del sys.modules[module]


# structlog uses rich, where it is installed, for tracebacks in colour. Our lines have none, and the import of rich
# takes as long as that of structlog.
with _hide("rich"):
    import structlog
    from structlog.typing import Processor

Format = Literal["text", "json"]

_SECRET_KEYS: Final = re.compile(r"(?i)(password|passwd|secret|token|credential|user_?data|authorization|basic_auth)")
_ASSIGNED: Final = re.compile(
    r"""(?ix) ( (?:password|passwd|secret|token|credential|user_?data|basic_auth) [\w-]{0,40}
      (?: ["']\s*:\s* | \s*=\s* ) )
    ( "(?:[^"\\]|\\.)*"? | '(?:[^'\\]|\\.)*'? | [^\s,;&)}\]]+ )"""
)
_AUTHORIZATION: Final = re.compile(r"(?i)(authorization[\"']?\s*[:=]\s*)\S.*")
_LINES: Final = frozenset({"exception", "stack"})
"""Keys of a log line whose values may have several lines of text."""
MOST_TEXT: Final = 4000
"""Most characters of one value in a log line. The rest of a longer value is cut off."""
_QUIET: Final = {
    "celery.worker.strategy": logging.WARNING,
    "celery.app.trace": logging.WARNING,
    "celery.beat": logging.WARNING,
    "botocore": logging.WARNING,
    "boto3": logging.WARNING,
    "urllib3": logging.WARNING,
    "kombu": logging.WARNING,
}
"""Logger of a library → the lowest level of its lines that are written. Below it the library would write a line for
every task or call, and the project's own lines have this information.
"""


def configure_logging(form: Format = "text", level: str = "INFO", stream: TextIO | None = None) -> None:
    """Let structlog and the standard library's logging write their lines to `stream` (default: standard error), in the
    format `form`, if their level is at least `level`.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    renderers: list[Processor] = [structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0, sort_keys=False)]
    if form == "json":
        renderers = [structlog.processors.EventRenamer("message"), structlog.processors.JSONRenderer(default=str)]
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(allow=())],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                mask_secrets,
                show_controls,
                *renderers,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(max(least, root.level))


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of a module. A call has a sentence and an action: `log.info("Sentence.", action="noun.verb",
    slot=…)`.
    """
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger


def mask_secrets(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return the values of a log line without secrets. Masked are the values of keys with a secret name, passwords in
    URLs, and `token=…` in texts.
    """
    return {key: _mask(key, value) for key, value in event.items()}


def show_controls(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return the values of a log line with control characters escaped, so that the text of a user cannot look like
    another log line. A traceback keeps its lines.
    """
    return {make_visible(key): _show(value, multiline=key in _LINES) for key, value in event.items()}


def _show(value: object, *, multiline: bool) -> object:
    match value:
        case str():
            return make_visible(value, multiline=multiline)
        case Mapping():
            return {make_visible(str(name)): _show(inner, multiline=False) for name, inner in value.items()}
        case list():
            return [_show(inner, multiline=False) for inner in value]
    return value


def _mask(key: str, value: object) -> object:
    if _SECRET_KEYS.search(key) and value is not None:
        return MASK
    match value:
        case str():
            return mask_text(value)
        case Mapping():
            return {str(name): _mask(str(name), inner) for name, inner in value.items()}
        case bytes() | bytearray():
            return f"{len(value)} bytes"
        case Sequence() | set() | frozenset():
            return [_mask("", inner) for inner in value]
        case bool() | int() | float() | None:
            return value
        case _:
            return mask_text(str(value))


def mask_text(text: str) -> str:
    """Return the text without passwords in URLs and without values after secret names. A text of more than MOST_TEXT
    characters is cut.
    """
    masked = mask_urls(text[: 2 * MOST_TEXT])
    for pattern, shown in ((_ASSIGNED, rf"\1{MASK}"), (_AUTHORIZATION, rf"\1{MASK}")):
        masked = pattern.sub(shown, masked)
    if len(text) <= MOST_TEXT:
        return masked
    return f"{masked[:MOST_TEXT]}… ({len(text)} characters)"
