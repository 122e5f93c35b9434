"""`python -I -S guard.py FOLDER`: the guard of a host without one of its duties, in place of leasehold/work/guard.py.

Only the standard library, as in the guard itself. The agent starts it if a guard of GUARD_DUTIES is switched off.
"""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

OFF = "CHAOS_OFF"
GUARD_DUTIES = frozenset({"deadline", "keeper"})
"""The names of the guards (tests/chaos/commands/switches.py) of which this process has a part."""
_PATH = Path(__file__).parents[3] / "leasehold" / "work" / "guard.py"


def load_guard() -> ModuleType:
    """Return the guard's module, loaded by its path: no package is on the path of this process."""
    spec = importlib.util.spec_from_file_location("leasehold_guard", _PATH)
    if spec is None or spec.loader is None:
        raise ImportError(f"no module in {_PATH}")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def drop_duty(guard: ModuleType, off: str) -> None:
    """Let commands have no deadline, or let what a killed guard leaves go on."""
    if off == "deadline":
        guard.Command.deadline = property(lambda _: None, lambda _, __: None)
    elif off == "keeper":
        vars(guard)["keep"] = lambda pid: os.waitpid(pid, 0)


if __name__ == "__main__":
    module = load_guard()
    drop_duty(module, os.environ.get(OFF, ""))
    sys.exit(module.main(sys.argv[1:]))
