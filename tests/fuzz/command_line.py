"""Odd command lines: each one ends with a status and one line for each fault, never with a traceback or for ever.

The commands run in this process. Commands that start a stack or follow something until Ctrl-C are not among them; an
alarm ends a command that waits, as Ctrl-C does.
"""

import io
import os
import random
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from enum import EnumType
from pathlib import Path
from typing import Any, Final, get_args

import typer

from leasehold.cli.program import app, run_safely

LONGEST_SECONDS: Final = 20
RAW: Final = frozenset(
    chr(each)
    for each in (
        *(*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A)),
        *(0x200E, 0x200F, 0x061C, 0x2028, 0x2029, 0xFEFF),
    )
)
"""Characters that no command prints as they are."""
_STARTED: Final = frozenset({"up", "demo", "emulate-ec2", "top", "down", "host run", "logs"})
_READERS: Final = frozenset({"apply", "config check", "reserve", "restore", "simulate", "prices import"})
"""The commands whose argument, or option `--file`, is a file that is read: no other command gets a path outside of its
folder, where it could write.
"""
_WAITERS: Final = frozenset({"wait", "--wait", "--timeout", "host", "run"})
_ENDLESS: Final = frozenset({"--watch", "--follow", "-f", "--install-completion", "--show-completion"})
_NUMBERS: Final = (
    *("0", "1", "-1", "-0", "1.5", "nan", "inf", "-inf", "1e308", "1e400", "-1e400", "1e-400", "0x10", "1_0", "\u0661"),
    *("9" * 18, "9" * 19, "9" * 22, "9" * 309, "9" * 5000, "-" + "9" * 22, "+1", " 1 ", "1s", "9" * 22 + "d", "\xb2"),
)
_TEXTS: Final = (
    *("", " ", "r1", "linux-1", "linux", "ci", "a=b", "=", "a=", "a=1", "cpus=2", "x86_64-linux", "pending", "json"),
    *("\udcff", "a\udcff=\udcfe", "\x1b[2J", "a=\x9b31m", "\u202eabc", "\u2066", "\u200f", "a\nb", "\t", "\ufeff"),
    *(
        "-",
        "--",
        "---",
        "-x",
        "--=",
        "*",
        "%s",
        "{}",
        "${x}",
        "~",
        "..",
        "/",
        "a/b",
        "\U0010ffff",
        "\ufffe",
        "x" * 5000,
    ),
    *("2026-11-28", "2026-11-28T10:00:00Z", "9999-12-31", "0000-00-00", "1h", "1d", "2026-13-45T99:99", "[", "{", '"'),
    *("redis://[", "http://[::1", "postgresql://u:p@h:x/d", "sqlite:///", "file:///", "a:b@c", "ci:key@cluster"),
)


def write_files(folder: Path) -> list[str]:
    """Write odd files into `folder`; return the paths that arguments name."""
    deep, lines = "[" * 20_000, "9" * 5000
    contents: dict[str, str | bytes] = {
        "empty.toml": "",
        "empty.json": "",
        "binary.toml": bytes(range(256)),
        "binary.json": b"\xff\xfe\x00",
        "deep.toml": f"a = {deep}",
        "deep.json": deep,
        "tables.toml": f"a = {'{a=' * 5000}",
        "bom.json": "\ufeff{}",
        "dots.toml": f"{'a.' * 5000}a = 1",
        "long.toml": f"a = {lines}",
        "long.json": lines,
        "list.json": "[]",
        "numbers.json": '{"system": "s", "priority": 1e400, "instances": 9999999999999999999999}',
        "surrogate.json": '{"id": "\\ud800", "system": "\\udfff"}',
        "texts.json": '{"id": "\u202e\x9b", "system": 1}',
        "rules.toml": '[pools.linux]\nsystem = "s"\nmax_slots = 99999999999999999999999',
        "time.toml": "a = 1979-05-27",
        "null.json": "null",
        "items.json": '[{"system": "s"}, null]',
        "trace.swf": "1 2 3\n",
        "text.toml": "a",
        "settings.toml": '[database]\nurl = "x"\n[broker]\nurl = 9223372036854775808\n[log]\nlevel = "\u202e"',
        "scenario.json": '{"config": {"pools": {}}, "timeline": [{"at": 1e400}]}',
        "prices.csv": "type,market\n\x00",
        "control.toml": 'a = "\x1b[2J"',
        "name.toml": '"\\u202e" = 1\n"\\u009b" = 2\n[pools."\\u2066"]\nx = 1',
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    (folder / "locked").write_text("x")
    with (folder / "huge").open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    names = [*contents, "fifo", "folder", "folder.toml", "locked", "huge", "missing", "missing/x", "fifo/x", "x" * 300]
    return [*names, "/dev/zero", "/dev/null", "/proc/self/mem", "/proc/self/environ", "/", ".", "/dev/full"]


@dataclass(frozen=True)
class Command:
    """A command of the tool: its words, and its parameters as the parser of options knows them."""

    words: tuple[str, ...]
    parameters: Sequence[Any]


def list_commands() -> list[Command]:
    """Return all commands that end by themselves."""
    return [each for each in _walk((), typer.main.get_command(app)) if " ".join(each.words) not in _STARTED]


def _walk(words: tuple[str, ...], command: Any) -> Iterator[Command]:
    yield Command(words, command.params)
    for name, each in getattr(command, "commands", {}).items():
        yield from _walk((*words, name), each)


def draw(seed: int, commands: Sequence[Command], files: Sequence[str]) -> list[str]:
    """Return the arguments of an odd command line."""
    chance = random.Random(seed)
    command = chance.choice(commands)
    words = list(command.words)
    for each in command.parameters:
        is_option = each.param_type_name == "option"
        if is_option and (_ENDLESS & {*each.opts} or chance.random() > 0.3):
            continue
        if is_option:
            words.append(chance.choice([*each.opts, *each.secondary_opts]))
        if not getattr(each, "is_flag", False):
            count = 1 if each.nargs == 1 else chance.choice((0, 1, 2, 3))
            reads = " ".join(command.words) in _READERS and (not is_option or "--file" in each.opts)
            usable = files if reads else [name for name in files if not name.startswith("/")]
            words += [_draw_value(chance, each, usable) for _ in range(count)]
    if chance.random() < 0.1:
        words.insert(chance.randrange(len(words) + 1), chance.choice((*_TEXTS, *_NUMBERS)))
    return words


def _draw_value(chance: random.Random, parameter: Any, files: Sequence[str]) -> str:
    kind = parameter.type_descriptor.annotation
    pools: list[Sequence[str]] = [_TEXTS, _NUMBERS, files]
    if "Path" in str(kind):
        pools += [files] * 6
    elif kind in {int, float}:
        pools += [_NUMBERS] * 6
    else:
        pools += [_TEXTS] * 3
    choices: Sequence[Any] = get_args(kind)
    if isinstance(kind, EnumType):
        members: Mapping[str, Any] = kind.__members__
        choices = [each.value for each in members.values()]
    if choices and chance.random() < 0.7:
        return str(chance.choice(choices))
    return chance.choice(chance.choice(pools))


def play(words: Sequence[str]) -> str | None:
    """Run a command; return what is wrong with its end, None if nothing is."""
    streams = [io.BytesIO(), io.BytesIO()]
    out, err = (io.TextIOWrapper(stream, "utf-8", write_through=True) for stream in streams)
    try:
        with redirect_stdout(out), redirect_stderr(err), _ending() as ended:
            status = run_safely(list(words))
    except BaseException:  # noqa: BLE001 - whatever a command raises is its failure
        return traceback.format_exc()
    printed = [each.getvalue().decode() for each in streams]
    if "Traceback" in printed[1] or RAW & set("".join(printed)):
        return f"status {status}, printed {''.join(printed)[-3000:]!a}"
    if ended and not _WAITERS & {*words}:
        return f"it had not ended after {LONGEST_SECONDS} seconds"
    return None


@contextmanager
def _ending() -> Iterator[list[bool]]:
    """Interrupt the block after LONGEST_SECONDS; the list has an entry if that has happened."""
    ended: list[bool] = []

    def interrupt(_number: int, _frame: object) -> None:
        ended.append(True)
        raise KeyboardInterrupt

    before, given = signal.signal(signal.SIGALRM, interrupt), sys.stdin
    signal.alarm(LONGEST_SECONDS)
    try:
        with Path(os.devnull).open(encoding="utf-8") as nothing:
            sys.stdin = nothing
            yield ended
    finally:
        sys.stdin = given
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def find_failures(seeds: Sequence[int], files: Sequence[str]) -> list[tuple[list[str], str]]:
    """Run a command line for each seed; return those that ended wrongly, with what was wrong."""
    commands = list_commands()
    drawn = [draw(each, commands, files) for each in seeds]
    return [(words, wrong) for words in drawn if (wrong := play(words)) is not None]
