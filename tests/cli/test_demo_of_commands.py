"""What `leasehold demo --commands` prints at its end."""

from io import StringIO

from rich.console import Console

from leasehold.demo.commands import Fate, report

FATES = [
    Fate("work-01", "released", "exit code 0", 1, ("machines-2",), "work 1 is done on machines-2", is_expected=True),
    Fate("gang", "released", "exit code 0", 3, ("machines-1", "machines-2"), "[red]knows[/] " * 9, is_expected=True),
    Fate("missing", "failed", "not started", 1, ("machines-1",), "", is_expected=True),
]


def test_each_command_has_a_readable_line_where_there_is_no_terminal() -> None:
    out = StringIO()
    report(FATES, Console(file=out, width=80))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "command ended outcome runs slots last line of its output"
    assert lines[1] == "work-01 released exit code 0 1 machines-2 work 1 is done on machines-2"
    # Output is no markup, and what is too long is cut; the slots of a gang stand below each other.
    assert lines[2:4] == ["gang released exit code 0 3 machines-1 [red]knows[/] [red]knows[/] …", "machines-2"]
    assert lines[4] == "missing failed not started 1 machines-1"
    assert lines[5] == "3 of 3 commands ended as expected."
