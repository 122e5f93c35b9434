"""Control characters in the texts of a producer: the commands of an operator print them escaped."""

import json
from typing import Final

from testbed.processes import Process, wait_for
from testbed.stack import Stack

HOSTILE: Final = "x\x1b[2Jy\x1b]0;owned\x07z\x9b31mw\x9d\u202ev\x7f"
SHOWN: Final = r"x\x1b[2Jy"
CONTROLS: Final = frozenset("\x07\x1b\x7f\x9b\x9d\u202e")
COMMANDS: Final = (
    ("list", "--tag", "run=texts", "--all", "-o", "wide"),
    ("list", "--tag", "run=texts", "--json"),
    ("explain", "texts"),
    ("events", "--reservation", "texts"),
    ("events", "--reservation", "texts", "--json"),
)


def test_no_command_prints_a_control_character_of_a_producer(stack: Stack) -> None:
    assert stack.submit("texts", pool="warm", tags={"run": "texts", "team": HOSTILE})["ok"]
    (row,) = stack.await_phase(["texts"], "leased")
    failed = {"reservation": "texts", "token": row.token, "reason": HOSTILE}
    assert stack.ask("fail", failed)["ok"]
    stack.await_phase(["texts"], "failed")
    started = [
        Process(f"texts-{number}", ["leasehold.cli", *arguments], stack.environment, stack.folder)
        for number, arguments in enumerate(COMMANDS)
    ]
    try:
        wait_for(lambda: not any(process.is_alive for process in started), "the commands", 100)
    finally:
        for process in started:
            process.stop()
    printed = [process.read_log(100_000) for process in started]
    assert [process.has_succeeded for process in started] == [True] * len(started), printed
    assert [sorted(set(text) & CONTROLS) for text in printed] == [[]] * len(started), printed
    assert all(SHOWN in text for text in printed[:4:3]), printed
    assert json.loads(printed[1])[0]["request"]["tags"] == {"run": "texts", "team": HOSTILE}
