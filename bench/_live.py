"""Forecasts on a live stack, compared with those of the simulation for the same jobs.

The stack runs embedded, with the EC2 emulator. Jobs of six users come in waves to 32 machines of one cpu. The first
forecast of each reservation is read by a client, as a user would. The simulation plays the same jobs on as many hosts.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from bench._forecasts import ForecastPlay
from bench._stack import await_slots, open_stack_with
from leasehold.client.async_client import AsyncClient
from leasehold.stack import Stack
from scheduler.foresight.forecaster import SHORT_WAIT
from scheduler.simulation.cloud_documents import CloudDocument
from scheduler.simulation.fleet import make_fleet
from scheduler.simulation.workload import Job, Workload, list_submissions

HOSTS: Final = 32
SYSTEM: Final = "bench"
MEAN_SECONDS: Final = (10.0, 15.0, 20.0, 30.0, 45.0, 60.0)
"""The mean run time of each user's jobs."""
WIDTHS: Final = (1, 1, 1, 1, 2, 4)
WAVE_SECONDS: Final = 600.0
LOADS: Final = (1.9, 0.5)
"""How much work comes, against what the machines can do: in the first half of a wave, and in the second one."""
POLL_SECONDS: Final = 3.0
PATIENCE: Final = 1_800.0


class Live(NamedTuple):
    """How many waits of more than SHORT_WAIT seconds had a forecast, and how many of these started within their 80 %
    interval, on the stack and in the simulation.
    """

    waits: int
    coverage: float
    simulated_waits: int
    simulated: float


@dataclass(slots=True)
class _Wait:
    """What a client saw of one reservation: its first forecast, and the seconds that it waited."""

    forecast: dict[str, Any] | None = None
    seconds: float = 0.0
    leased_at: float = 0.0


def make_jobs(seconds: float) -> Workload:
    """Return the jobs that come within this time."""
    random, at, jobs = Random(1), 0.0, list[Job]()
    mean_work = sum(MEAN_SECONDS) / len(MEAN_SECONDS) * sum(WIDTHS) / len(WIDTHS)
    while at < seconds:
        user, width = random.randrange(len(MEAN_SECONDS)), random.choice(WIDTHS)
        run_seconds = max(1.0, random.gammavariate(2.0, MEAN_SECONDS[user] / 2))
        jobs.append(Job(len(jobs) + 1, at, run_seconds, width, None, user, -1, -1, -1))
        load = LOADS[int(at // (WAVE_SECONDS / 2)) % 2]
        at += random.expovariate(load * HOSTS / mean_work)
    return Workload(Path("live"), tuple(jobs), ())


def play_live(seconds: float) -> Live:
    """Play the jobs of this time on a live stack, and in the simulation."""
    workload = make_jobs(seconds)
    live = _play_on_stack(workload)
    pool = {"provider": "static", "system": SYSTEM, "resources": {"cpus": 1}, "max_slots": HOSTS}
    simulated = ForecastPlay(workload, make_fleet({"pools": {"hosts": pool}}, CloudDocument()), 32, None)
    simulated.play()
    hits = [each.is_hit for each in simulated.judged]
    return Live(len(live), _divide(live), len(hits), _divide(hits))


def _divide(hits: Sequence[bool]) -> float:
    return sum(hits) / max(1, len(hits))


def _play_on_stack(workload: Workload) -> list[bool]:
    pool = {
        "system": SYSTEM,
        "resources": {"cpus": 1},
        "min_slots": HOSTS,
        "max_slots": HOSTS,
        "max_leases_per_slot": 1,
        "lease_ttl": 0,
        "ec2": {"image": "ami-0123456789abcdef0"},
    }
    with open_stack_with({"bench": pool}) as (stack, client):
        await_slots(client, HOSTS)
        return list(_list_hits(asyncio.run(_hold_all(stack, workload))))


def _list_hits(waits: Sequence[_Wait]) -> Iterator[bool]:
    for each in waits:
        if each.seconds > SHORT_WAIT and each.forecast is not None and not each.forecast.get("unknown"):
            yield each.forecast["low"] <= each.leased_at <= each.forecast["high"]


async def _hold_all(stack: Stack, workload: Workload) -> list[_Wait]:
    """Submit all jobs at their times, hold their leases for their run times, and return their waits."""
    settings = stack.configuration.settings
    waiting: dict[str, _Wait] = {}
    begin = asyncio.get_running_loop().time()
    async with AsyncClient(stack.url, view_url=settings.view_url, prefix=settings.view.prefix) as client:

        async def hold(at: float, document: dict[str, Any], run_seconds: float) -> _Wait:
            await asyncio.sleep(begin + at - asyncio.get_running_loop().time())
            row = await client.submit(document)
            seen = waiting[row.id] = _Wait()
            leased = await client.wait(row.id, timeout=PATIENCE)
            del waiting[row.id]
            assert leased.leased_at is not None
            seen.leased_at, seen.seconds = leased.leased_at, leased.leased_at - row.created_at
            await asyncio.sleep(run_seconds)
            await client.release(row.id, leased.token)
            return seen

        async def look() -> None:
            while True:
                await asyncio.sleep(POLL_SECONDS)
                for name, found in (
                    await client.etas([name for name in waiting if not waiting[name].forecast])
                ).items():
                    if found.get("unknown") != "not_yet" and name in waiting:
                        waiting[name].forecast = found

        looking = asyncio.create_task(look())
        submissions = list_submissions(workload, SYSTEM)
        acts = [
            hold(at, document.model_dump(mode="json", exclude_defaults=True, exclude={"runtime"}), job.run_seconds)
            for (at, document), job in zip(submissions, workload.jobs, strict=True)
        ]
        try:
            return await asyncio.gather(*acts)
        finally:
            looking.cancel()
