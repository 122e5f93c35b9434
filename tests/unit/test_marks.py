"""The mark that signal handlers set, and which the main thread awaits."""

import signal
import sys
import threading
from types import FrameType
from typing import Any, Self

import pytest

from scheduler.protocol.marks import Mark


class Steps:
    """Calls a function at one step (an instruction of Python) of a block, as a signal handler is called; counts the
    steps.
    """

    def __init__(self, chosen: int, act: Any) -> None:
        self._chosen, self._act, self.count = chosen, act, 0

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.count += 1
            if self.count == self._chosen:
                self._act()
        return self._trace


@pytest.mark.timeout(20)
def test_a_handler_may_set_a_mark_at_each_step_of_a_wait() -> None:
    mark = Mark()
    with Steps(0, None) as steps:
        mark.wait(0)
    assert not mark.is_set
    assert steps.count
    for chosen in range(1, steps.count + 1):
        mark = Mark()
        with Steps(chosen, mark.set) as steps:
            mark.wait(0)
        # The interpreter may need fewer steps for a block that it knows.
        assert mark.is_set or steps.count < chosen


def test_a_signal_ends_a_wait_without_an_end() -> None:
    mark, main = Mark(), threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGTERM, lambda *_: mark.set())
    timer = threading.Timer(0.1, signal.pthread_kill, [main, signal.SIGTERM])
    timer.start()
    try:
        assert mark.wait()
        assert mark.wait()
    finally:
        signal.signal(signal.SIGTERM, before)
        timer.join()
