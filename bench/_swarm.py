"""Simulated host agents: many in one process and event loop, each with its own connections.

They send the same messages as `leasehold.agent`, and as often: heartbeats, requests for their leases, copies of
unanswered requests. `python -m bench._swarm URL FIRST COUNT OFFLINE_TIMEOUT KIND` runs until it is ended. `KIND`:
`present` for the rules of this version, `earlier` for agents that ask every ten seconds and send a copy every two.
"""

import asyncio
import base64
import json
import os
import random
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

import redis.asyncio as redis

from leasehold.agent.agent import ASK_SECONDS, LONGEST_RETRY_SECONDS, LOOK_SECONDS, RETRY_SECONDS
from leasehold.client.backoff import Backoff, shorten
from leasehold.client.redis.exchange import Pending, read_retry
from leasehold.client.redis.wire import HEARTBEAT_SECONDS
from scheduler.protocol.heartbeats import Heartbeat, find_beat, format_heartbeat
from scheduler.protocol.names import DEFAULT_PREFIX, RESERVATIONS, task_name

EARLIER_LOOK_SECONDS: Final = 10.0
EARLIER_RESEND_SECONDS: Final = 2.0
FIRST_LOOK_SECONDS: Final = 20.0
"""At the start of a run the agents know no version yet. Each asks once within this time."""


def name_slot(number: int) -> str:
    """Return the slot of this agent."""
    return f"host-{number}"


def name_machine(number: int) -> str:
    """Return the machine id of this agent, as long as the digest of a real one."""
    return f"{number:032x}"


def make_message(verb: str, document: Mapping[str, Any], headers: Mapping[str, Any]) -> str:
    """A task message as it stands in the queue (docs/reference/protocol.md)."""
    body = base64.b64encode(json.dumps([[document], {}, None]).encode()).decode()
    return json.dumps(
        {
            "body": body,
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": {"task": task_name(RESERVATIONS, verb), "id": uuid4().hex, **headers},
            "properties": {
                "body_encoding": "base64",
                "delivery_tag": uuid4().hex,
                "delivery_info": {"exchange": "", "routing_key": RESERVATIONS},
            },
        }
    )


class EarlierAgent:
    """An agent that looks every ten seconds by message, and sends a copy of an unanswered message every two."""

    def __init__(self, client: redis.Redis, number: int, offline_timeout: float) -> None:
        self.client, self.slot, self.machine = client, name_slot(number), name_machine(number)
        self.beat_seconds = find_beat(offline_timeout)

    async def run(self) -> None:
        """Serve until cancelled."""
        await asyncio.gather(self.beat(), self.look_again_and_again())

    async def beat(self) -> None:
        """Send heartbeats at an even pace, from a random moment on."""
        await asyncio.sleep(random.uniform(0, self.beat_seconds))
        while True:
            await self.send_heartbeat()
            await asyncio.sleep(self.beat_seconds)

    async def send_heartbeat(self) -> None:
        """One heartbeat."""
        key = f"{DEFAULT_PREFIX}heartbeat:{self.slot}"
        await self.client.set(key, self.machine, ex=HEARTBEAT_SECONDS)

    async def look_again_and_again(self) -> None:
        """A look at a random moment, and then whenever one is due or a hint comes."""
        await asyncio.sleep(random.uniform(0, EARLIER_LOOK_SECONDS))
        async with self.client.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(f"{DEFAULT_PREFIX}host:{self.slot}")
            while True:
                answer = await self.ask("leases", {"slot": self.slot, "machine": self.machine}, ASK_SECONDS)
                await wait_for_hint(channel, RETRY_SECONDS if answer is None else EARLIER_LOOK_SECONDS)

    async def ask(self, verb: str, fields: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """The answer to a request; None when there is none in time."""
        request = uuid4().hex
        address = f"{DEFAULT_PREFIX}reply:{request}"
        document = {**fields, "request": request, "reply_to": address}
        deadline, due = time.monotonic() + seconds, 0.0
        while (now := time.monotonic()) < deadline:
            if now >= due:
                await self.client.lpush(RESERVATIONS, make_message(verb, document, {"sent_at": time.time()}))
                due = now + EARLIER_RESEND_SECONDS
            got = await self.client.blpop([address], timeout=max(min(due, deadline) - now, 0.01))
            if got is not None:
                answer: dict[str, Any] = json.loads(got[1])
                return answer
        return None


class PresentAgent(EarlierAgent):
    """An agent of this version: its heartbeats carry what it knows, its requests follow the module
    `leasehold.client.redis.exchange`.
    """

    version: str | None = None

    async def send_heartbeat(self) -> None:
        """See EarlierAgent."""
        value = format_heartbeat(Heartbeat(self.machine, self.version))
        await self.client.set(f"{DEFAULT_PREFIX}heartbeat:{self.slot}", value, ex=HEARTBEAT_SECONDS)

    async def look_again_and_again(self) -> None:
        """See EarlierAgent."""
        await asyncio.sleep(random.uniform(0, FIRST_LOOK_SECONDS))
        retry = Backoff(RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        async with self.client.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(f"{DEFAULT_PREFIX}host:{self.slot}")
            while True:
                answer = await self.ask("leases", {"slot": self.slot, "machine": self.machine}, ASK_SECONDS)
                if answer is None:
                    await wait_for_hint(channel, retry.take())
                    continue
                retry.reset()
                if answer["version"] != self.version:
                    self.version = answer["version"]
                    await self.send_heartbeat()
                await wait_for_hint(channel, shorten(LOOK_SECONDS))

    async def ask(self, verb: str, fields: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """See EarlierAgent."""
        request = uuid4().hex
        address = f"{DEFAULT_PREFIX}reply:{request}"
        pending = Pending({**fields, "request": request, "reply_to": address})
        deadline = time.monotonic() + seconds
        while (now := time.monotonic()) < deadline:
            if now >= pending.due:
                await self.send_or_hold(verb, pending, deadline - now)
            pause = max(min(pending.due, deadline) - time.monotonic(), 0.01)
            got = await self.client.blpop([address], timeout=pause)
            answer: dict[str, Any] | None = None if got is None else json.loads(got[1])
            if answer is not None and (later := read_retry(answer)) is not None:
                pending.note_shed(later)
            elif answer is not None:
                return answer
        return None

    async def send_or_hold(self, verb: str, pending: Pending, patience: float) -> None:
        """A copy, unless an earlier one still waits."""
        if pending.may_be_held() and await self.client.llen(RESERVATIONS):
            taken = await self.client.get(f"{DEFAULT_PREFIX}queue:taken")
            if taken is not None and (pending.sent_at or 0.0) > float(taken):
                pending.hold()
                return
        sent_at = time.time()
        headers = {"sent_at": sent_at, "patience": patience}
        await self.client.lpush(RESERVATIONS, make_message(verb, pending.document, headers))
        pending.note_sent(sent_at)


async def wait_for_hint(channel: Any, seconds: float) -> bool:
    """Whether a hint came within this time."""
    return await channel.get_message(timeout=seconds) is not None


async def serve(url: str, first: int, count: int, offline_timeout: float, kind: str) -> None:
    """Run these agents until SIGTERM."""
    client = redis.Redis.from_url(url, socket_timeout=60, socket_connect_timeout=60, max_connections=8 * count)
    make = {"present": PresentAgent, "earlier": EarlierAgent}[kind]
    agents = [make(client, number, offline_timeout) for number in range(first, first + count)]
    # Thousands of connections that wait for an answer: nothing of them is worth an orderly end.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, os._exit, 0)
    await asyncio.gather(*(agent.run() for agent in agents))


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]))
