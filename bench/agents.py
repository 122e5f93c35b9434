"""Thousands of host agents and one producer: the time until the producer's reservation is accepted.

Must reach: with 3,000 agents on two cores, 0.2 s median and 1 s at p99.
`python -m bench.agents [--agents N …] [--seconds S] [--earlier] [--json]`; `--earlier` runs agents of earlier
versions.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import quantiles
from time import monotonic, perf_counter, sleep
from typing import Any

from bench._stack import SYSTEM, await_slots, open_stack_with
from bench._swarm import name_machine, name_slot
from leasehold.client.client import Client
from leasehold.client.redis.transport import RequestTransport
from leasehold.errors import NotAnswered
from leasehold.stack import Stack
from scheduler.protocol.names import RESERVATIONS

OFFLINE_TIMEOUT = 180.0
"""Seconds, as in the default rules."""
POOL = {"system": SYSTEM, "provider": "static", "max_leases_per_slot": 4, "offline_timeout": OFFLINE_TIMEOUT}
PROCESSES = 3
PAUSE_SECONDS = 0.1
"""Between an answer to the producer and its next reservation."""
TIMEOUT_SECONDS = 20.0
SETTLE_SECONDS = 20.0
"""From the first heartbeat of the last agent until the producer begins: agents that begin all ask at once."""
START_SECONDS = 300.0
"""Within this time all agents have to send a heartbeat."""
HOSTS_A_REQUEST = 500


def register(client: Client, agents: int) -> None:
    """Register all hosts, many with a message."""
    for first in range(0, agents, HOSTS_A_REQUEST):
        items = [
            {"slot": name_slot(number), "pool": "lab", "machine": name_machine(number), "resources": {"cpus": 8}}
            for number in range(first, min(first + HOSTS_A_REQUEST, agents))
        ]
        assert client.ask("register", {"items": items}, timeout=60)["ok"]


@contextmanager
def run_agents(url: str, agents: int, kind: str) -> Iterator[None]:
    """The agents, in a few processes."""
    share = -(-agents // PROCESSES)
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "bench._swarm", url]
            + [str(word) for word in (first, min(share, agents - first), OFFLINE_TIMEOUT, kind)]
        )
        for first in range(0, agents, share)
    ]
    try:
        yield
        assert all(process.poll() is None for process in started), "agents ended before they were asked to"
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def submit_one_at_a_time(client: Client, wire: RequestTransport, seconds: float) -> dict[str, Any]:
    """How long each reservation took until it was accepted, and how many messages waited meanwhile."""
    until, times, depths, unanswered = monotonic() + seconds, [], [], 0
    while monotonic() < until:
        depths.append(wire.redis.llen(RESERVATIONS))
        began = perf_counter()
        try:
            client.reserve(system=SYSTEM, resources={"cpus": 1}, timeout=TIMEOUT_SECONDS)
        except NotAnswered:
            unanswered += 1
        times.append(perf_counter() - began)
        sleep(PAUSE_SECONDS)
    return {"times": times, "unanswered": unanswered, "deepest": max(depths), "deep_at_the_end": depths[-1]}


def measure(agents: int, seconds: float, kind: str) -> dict[str, Any]:
    """One run on a stack of its own."""
    with open_stack_with({"lab": POOL}) as (stack, client):
        wire = RequestTransport(
            stack.url, stack.configuration.settings.view.prefix, stack.configuration.settings.view_url
        )
        register(client, agents)
        await_slots(client, agents)
        with run_agents(stack.url, agents, kind):
            await_heartbeats(wire, agents)
            sleep(SETTLE_SECONDS)
            found = submit_one_at_a_time(client, wire, seconds)
        found["silent"] = count_silent(stack)
        found["beating"] = count_heartbeats(wire)
        wire.close()
    times = found.pop("times")
    cuts = quantiles(times, n=100, method="inclusive") if len(times) > 1 else times * 99
    figures = {"accepted": len(times) - found["unanswered"], "p50": cuts[49], "p99": cuts[98], "longest": max(times)}
    return {"agents": agents, "kind": kind, "seconds": seconds, **figures, **found}


def count_heartbeats(wire: RequestTransport) -> int:
    """How many hosts have sent a heartbeat."""
    return sum(1 for _ in wire.redis.scan_iter(f"{wire.prefix}heartbeat:host-*", count=1000))


def await_heartbeats(wire: RequestTransport, agents: int) -> None:
    """Return when each agent has sent a heartbeat."""
    until = monotonic() + START_SECONDS
    while count_heartbeats(wire) < agents:
        assert monotonic() < until, "the agents do not send heartbeats: they get no processor time"
        sleep(1)


def count_silent(stack: Stack) -> int:
    """How many hosts were not heard of for so long that they count as offline."""
    store = stack.open_store()
    now = store.now()
    return sum(now - (slot.last_seen or 0.0) > OFFLINE_TIMEOUT for slot in store.find_slots(pools=["lab"]))


def main(words: Sequence[str]) -> None:
    """Measure each number of agents."""
    parser = argparse.ArgumentParser(prog="python -m bench.agents")
    parser.add_argument("--agents", type=int, nargs="+", default=[1500, 3000])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the producer submits")
    parser.add_argument("--earlier", action="store_true", help="agents of earlier versions")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    rows = [measure(agents, given.seconds, "earlier" if given.earlier else "present") for agents in given.agents]
    if given.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(
            f"{row['agents']:>6,} agents ({row['kind']}): {row['accepted']} accepted, {row['unanswered']} not;"
            f" median {row['p50']:.3f} s, p99 {row['p99']:.3f} s, longest {row['longest']:.3f} s;"
            f" queue at most {row['deepest']:,}, {row['deep_at_the_end']:,} at the end;"
            f" {row['beating']:,} hosts beat, {row['silent']} are silent"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
