"""Notices on Redis channels for one event loop. One connection receives the notices of all watches. Notices may be
lost; after a lost connection all watches are notified, so that they read their rows again.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
import redis
from typing_extensions import override

from leasehold.client.models import HostHint, LeaseKey
from leasehold.client.ports import Flag, Joined, Notices
from leasehold.client.redis.lines import Lines

LISTEN_SECONDS: Final = 0.5
"""The most seconds that a watch waits for the confirmation of its subscription."""
PING_SECONDS: Final = 10.0
"""Seconds between two checks of the connection. A check without a message since the last one sends a PING; if nothing
arrives until the next one, the connection counts as lost.
"""
PAUSE_SECONDS: Final = 0.2


class _Lease(msgspec.Struct):
    slot: str


class _Notice(msgspec.Struct):
    """The part of a notice about a reservation that is read: the slots on which it had leases when the notice was
    sent.
    """

    leases: list[_Lease] = []


_Message = TypeVar("_Message", _Notice, HostHint)


class _Channel:
    """A channel that is watched: its flags, and its newest message."""

    def __init__(self) -> None:
        self.flags: set[Flag] = set()
        self.newest = b"{}"
        self.is_known = False
        """Whether the subscription was confirmed before, so that another confirmation means that notices were lost."""
        self.confirmed = asyncio.Event()


class Subscription:
    """The connection that receives the notices of one client. It opens with the first watch."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        lines.on_left.append(self._leave)
        self._channels: dict[str, _Channel] = {}
        self._connection: Any = None
        self._subscribed: set[str] = set()
        self._heard = 0
        """The number of messages that have arrived."""
        self._task: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._is_closed = False

    def add(self, name: str, flag: Flag) -> None:
        """Set `flag` at each message on the channel `name`."""
        self._channels.setdefault(name, _Channel()).flags.add(flag)
        if self._task is None and not self._is_closed:
            self._task = asyncio.get_running_loop().create_task(self._hear())
        self._send_soon()

    def remove(self, name: str, flag: Flag) -> None:
        """No longer set `flag` at messages on the channel `name`."""
        channel = self._channels.get(name)
        if channel is not None:
            channel.flags.discard(flag)
            if not channel.flags:
                del self._channels[name]
                self._send_soon()

    async def listen(self, name: str) -> None:
        """Return when the subscription to the channel `name` is confirmed, or after LISTEN_SECONDS."""
        channel = self._channels.get(name)
        if channel is not None and not channel.confirmed.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LISTEN_SECONDS):
                    await channel.confirmed.wait()

    def find_newest(self, name: str, kind: type[_Message]) -> _Message:
        """Return the newest message on the channel `name`. A message that cannot be read is a hint all the same: then
        return an empty one.
        """
        channel = self._channels.get(name)
        try:
            return kind() if channel is None else msgspec.json.decode(channel.newest, type=kind)
        except msgspec.DecodeError:
            return kind()

    async def close(self) -> None:
        """Close the connection, and set all flags."""
        self._is_closed = True
        for task in (self._task, self._sending):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for each in self._channels.values():
            each.confirmed.set()
            self._set(each)

    def _send_soon(self) -> None:
        # Changes of one turn of the event loop travel together.
        if self._connection is not None and (self._sending is None or self._sending.done()):
            self._sending = asyncio.get_running_loop().create_task(self._send_changes())

    async def _send_changes(self) -> None:
        with suppress(redis.RedisError, OSError):
            while (connection := self._connection) is not None and self._subscribed != self._channels.keys():
                new, old = self._channels.keys() - self._subscribed, self._subscribed - self._channels.keys()
                self._subscribed = set(self._channels)
                commands = [("SUBSCRIBE", *new)] * bool(new) + [("UNSUBSCRIBE", *old)] * bool(old)
                await connection.send_packed_command(connection.pack_commands(commands), check_health=False)

    async def _hear(self) -> None:
        while True:
            connection = self._lines.connect()
            try:
                await connection.connect()
                self._connection, self._subscribed = connection, set()
                self._send_soon()
                await self._receive(connection)
            except (redis.RedisError, OSError):
                await asyncio.sleep(PAUSE_SECONDS)
            finally:
                self._connection = None
                await connection.disconnect(nowait=True)

    async def _receive(self, connection: Any) -> None:
        """Receive messages until the connection is lost, or until the lines leave their server."""
        left, checking = self._lines.left, asyncio.get_running_loop().create_task(self._check(connection))
        try:
            while left == self._lines.left:
                message = await connection.read_response()
                self._heard += 1
                # The reply to a PING is a list of two, or no list if the connection is subscribed to nothing.
                if isinstance(message, list) and (channel := self._channels.get(message[1].decode())) is not None:
                    if message[0] == b"message":
                        channel.newest = message[2]
                        self._set(channel)
                    elif message[0] == b"subscribe":
                        if channel.is_known:
                            self._set(channel)
                        channel.is_known = True
                        channel.confirmed.set()
        finally:
            checking.cancel()

    async def _check(self, connection: Any) -> None:
        """Send a PING after a time without a message. Close the connection if nothing answers."""
        is_asked = False
        while True:
            heard = self._heard
            await asyncio.sleep(PING_SECONDS)
            if heard != self._heard:
                is_asked = False
            elif is_asked:
                self._leave()
                return
            else:
                with suppress(redis.RedisError, OSError):
                    await connection.send_packed_command(connection.pack_command("PING"), check_health=False)
                is_asked = True

    @staticmethod
    def _set(channel: _Channel) -> None:
        for each in channel.flags:
            each.set()

    def _leave(self) -> None:
        if self._connection is not None and self._task is not None:
            # The task that reads gets an error, and connects again.
            self._connection._writer.close()  # noqa: SLF001 - redis-py has no way to end the read of another task


class ChannelNotices(Notices):
    """The notices about one kind of rows. `channel_of`: the name of the channel for the id of a row."""

    def __init__(self, subscription: Subscription, channel_of: Callable[[str], str]) -> None:
        self._subscription, self._channel_of = subscription, channel_of

    @override
    def add(self, name: str, flag: Flag) -> None:
        self._subscription.add(self._channel_of(name), flag)

    @override
    async def listen(self, name: str) -> None:
        await self._subscription.listen(self._channel_of(name))

    @override
    def remove(self, name: str, flag: Flag) -> None:
        self._subscription.remove(self._channel_of(name), flag)

    @override
    def find_expected(self, name: str) -> Collection[str]:
        return frozenset(each.slot for each in self._subscription.find_newest(self._channel_of(name), _Notice).leases)

    @override
    def find_commands(self, name: str) -> Sequence[LeaseKey]:
        return self._subscription.find_newest(self._channel_of(name), HostHint).list_commands()

    @override
    def note(self, name: str, seen: Joined) -> None:
        """Do nothing: Redis sends a notice at each change, whichever row was read last."""
