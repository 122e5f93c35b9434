"""The logs of the processes: one line an event, and no secret in any of them."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from workers.logs import Format, configure_logging, get_logger, mask_text

SECRET = "hunter2"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The written lines; the logging configuration is restored afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_a_line_of_json_has_its_sentence_action_and_ids(stream: io.StringIO) -> None:
    configure_logging("json", "info", stream)
    with structlog.contextvars.bound_contextvars(task="leasehold.launch.slot"):
        get_logger("a").info("Launched.", action="launch.success", slot="linux-1")
    line = json.loads(stream.getvalue())
    expected = {"message": "Launched.", "action": "launch.success", "slot": "linux-1", "level": "info"}
    assert expected.items() <= line.items()
    assert line["task"] == "leasehold.launch.slot"


def test_a_line_of_text_is_one_line(stream: io.StringIO) -> None:
    configure_logging("text", "info", stream)
    get_logger("a").warning("Refused.", action="request.refused", error="first\nsecond")
    assert stream.getvalue().count("\n") == 1


def test_an_event_below_the_level_is_not_written(stream: io.StringIO) -> None:
    configure_logging("text", "warning", stream)
    get_logger("a").info("Ticked.", action="tick.done")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_secret_is_written(stream: io.StringIO, form: str) -> None:
    configure_logging(form, "debug", stream)  # type: ignore[arg-type]
    log = get_logger("ours")
    log.info("Ours.", action="a", token=SECRET, user_data=SECRET, nested={"password": SECRET, "reply_to": "x"})
    log.info("A list.", action="a", documents=[{"token": SECRET}, f"redis://user:{SECRET}@host/0"])
    log.info("In a sentence: redis://:%s@host:6379/0", SECRET, action="a")
    log.info("A header.", action="a", header=f"Authorization: Bearer {SECRET}")
    theirs = logging.getLogger("celery.somewhere")
    theirs.warning("Connected to %s", f"rediss://user:{SECRET}@host:6379/0")
    theirs.warning("message: {'token': '%s', \"UserData\": \"%s\"}", SECRET, SECRET)
    theirs.warning("secret_access_key=%s&x=1", SECRET)
    try:
        int(f"cannot reach postgresql://me:{SECRET}@host/name")
    except ValueError:
        theirs.exception("Failed.")
        log.exception("Failed.", action="a")
    written = stream.getvalue()
    assert "cannot reach postgresql://me:***@host/name" in written
    assert SECRET not in written


@pytest.mark.parametrize(
    "text", ["redis://127.0.0.1:6379/0", "the token of r1 is stale", "http://host:80/a@b", "2 tokens: see below"]
)
def test_a_text_without_a_secret_is_unchanged(text: str) -> None:
    assert mask_text(text) == text


def test_a_text_that_is_too_long_is_shortened() -> None:
    assert len(mask_text("x" * 1_000_000)) < 5000


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_text_of_a_user_forges_a_line_or_controls_a_terminal(stream: io.StringIO, form: Format) -> None:
    configure_logging(form, "info", stream)
    hostile = "x\x1b[2J\n2026-01-01 [error] forged\x9b\u202e"
    get_logger("ours").info("Refused.", action="task.refused", got=hostile, detail={"path": [hostile]})
    logging.getLogger("celery").warning("task %s", hostile)
    written = stream.getvalue()
    assert len(written.splitlines()) == 2
    assert set(written) & set("\x1b\x9b\u202e") == set()


def test_a_traceback_keeps_its_lines(stream: io.StringIO) -> None:
    configure_logging("text", "info", stream)
    try:
        int("odd \x1b text")
    except ValueError:
        get_logger("ours").exception("Failed.", action="task.failed")
    lines = stream.getvalue().splitlines()
    assert lines[-1].startswith("ValueError: invalid literal")
    assert len(lines) > 3
