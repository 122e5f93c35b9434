"""Launches in bulk on a whole stack against the EC2 emulator: the seconds until all slots are ready, and counted calls,
expired messages and repeated work.

`python -m bench.bulk [--slots 1000 [2000 …]] [--json]`. Must reach with 1,000 slots: at most 6 mutating calls until all
are ready, at most 4 to end them, at most slots / 100 + 2 describe calls for each pass of the health checks. Must reach
with up to 10,000 slots: all are ready in 300 s, and no launch, check or termination expires. Beat's own messages may
expire while the same work is under way (hear, interruptions, sweep).
"""

import json
import re
from argparse import ArgumentParser
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

from testbed.guarding import take_signals_as_interrupts
from testbed.stack import Stack, a_pool

OFFERINGS = [{"name": name} for name in ("c5.large", "m5.large", "c5a.large")]
MUTATING = ("CreateFleet", "RunInstances", "CreateLaunchTemplate", "TerminateInstances", "CreateTags")
EXPIRED = re.compile(r"action=message\.expired.*task=leasehold\.(\S+)")
SENT_AGAIN = re.compile(r"action=recover\.sent.*count=(\d+)|count=(\d+).*action=recover\.sent")
CPU_OF = ("launch", "health", "terminate", "ticks", "emulator")
"""The processes whose CPU time is shown."""


def count_calls(stack: Stack) -> Counter[str]:
    """Return the number of calls that EC2 served so far, by action."""
    return Counter(call["action"] for call in stack.control("calls")["calls"])


def count_work(stack: Stack) -> Counter[str]:
    """Return how many messages of the queues with slow work have expired so far (`expired QUEUE.TASK`), and how much
    work was sent again because it was not done (`sent again`).
    """
    logs = [stack.processes[name].read_log(10**9) for name in ("launch", "health", "terminate")]
    expired = Counter(f"expired {task}" for text in logs for task in EXPIRED.findall(text))
    again = SENT_AGAIN.findall(logs[1])
    return expired + Counter({"sent again": sum(int(first or second) for first, second in again)})


def read_cpu_seconds(stack: Stack) -> Counter[str]:
    """Return the CPU time of processes of the stack, in seconds. Source: proc(5)."""
    found = Counter[str]()
    for name in CPU_OF:
        fields = Path(f"/proc/{stack.processes[name].pid}/stat").read_text().rpartition(")")[2].split()
        found[name] = sum(map(int, fields[11:15])) // 100
    return found


def await_slots(stack: Stack, state: str, count: int, patience: float) -> tuple[float, int]:
    """Wait until this many slots are in the state, at most `patience` seconds. Return the seconds and the number."""
    began = monotonic()
    while (found := sum(slot.state == state for slot in stack.slots())) < count:
        if monotonic() > began + patience:
            break
        # As exact as the figure has to be. A look at all slots takes a tenth of a second for 10,000.
        sleep(max(0.2, count / 5000))
    return monotonic() - began, found


def measure(slots: int, patience: float) -> dict[str, Any]:
    """Let a pool have `slots` slots at once and let them go again. Return the seconds and the counts of both."""
    full = {"pools": {"linux": a_pool(min_slots=slots, max_slots=slots, offerings=OFFERINGS)}}
    none = {"pools": {"linux": a_pool(min_slots=0, max_slots=slots, offerings=OFFERINGS)}}
    with (
        TemporaryDirectory(prefix="leasehold-bench-") as folder,
        Stack(Path(folder), none, SWEEP_INTERVAL=5, RECOVER_INTERVAL=10) as stack,
    ):
        found: dict[str, Any] = {"slots": slots}
        for name, rules, state in (("launch", full, "ready"), ("end", none, "empty")):
            calls, work, cpu = count_calls(stack), count_work(stack), read_cpu_seconds(stack)
            stack.apply(rules)
            seconds, reached = await_slots(stack, state, slots, patience)
            calls = count_calls(stack) - calls
            found[name] = {
                "seconds": seconds,
                "reached": reached,
                "mutating": sum(calls[action] for action in MUTATING),
                "calls": dict(calls),
                "work": dict(count_work(stack) - work),
                "cpu_seconds": dict(read_cpu_seconds(stack) - cpu),
            }
        found["machines"] = len(stack.instances())
        return found


def show(found: dict[str, Any]) -> None:
    """Print the figures of one number of slots."""
    for name in ("launch", "end"):
        line = found[name]
        calls, cpu = (
            ", ".join(f"{key} {count}" for key, count in sorted(line[part].items()))
            for part in ("calls", "cpu_seconds")
        )
        work = ", ".join(f"{count} {key}" for key, count in sorted(line["work"].items())) or "0 expired, 0 sent again"
        reached = f"{line['reached']} of {found['slots']} slots: {line['seconds']:6.1f} s"
        print(f"{name:<7} {reached}, {line['mutating']} mutating calls, {work} ({calls}; CPU seconds: {cpu})")
    print(f"machines that EC2 launched: {found['machines']}")


def main() -> None:
    """Print one line for the launch and one for the end of the slots, for each number of slots."""
    take_signals_as_interrupts()
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, nargs="+", default=[1000], help="how many slots (default: 1000)")
    parser.add_argument("--patience", type=float, default=600, help="seconds after which a wait ends (default: 600)")
    parser.add_argument("--json", action="store_true", help="print one JSON document for each number of slots")
    options = parser.parse_args()
    for slots in options.slots:
        found = measure(slots, options.patience)
        if options.json:
            print(json.dumps(found), flush=True)
        else:
            show(found)


if __name__ == "__main__":
    main()
