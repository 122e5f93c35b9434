"""Keeps the subscriptions of hosts to hints (messages that a slot has changed) between two HTTP requests. A
subscription lasts KEPT_SECONDS longer than the request that made it, so that a host whose next request comes within
this time misses no hint.
"""

import time
from typing import Final

from leasehold.client.async_client import AsyncClient
from leasehold.client.async_hosts import AsyncHints

KEPT_SECONDS: Final = 60.0
"""Seconds after its last use for which a subscription is kept."""
_Key = tuple[AsyncClient, str]


class KeptHints:
    """The subscriptions to hints of all hosts that wait for them. A hint is a short message that a slot has changed.

    An object of this class may be used by one event loop only.
    """

    def __init__(self) -> None:
        self._kept: dict[_Key, AsyncHints] = {}
        self._used_at: dict[_Key, float] = {}

    async def wait(self, client: AsyncClient, slot: str, seconds: float) -> bool:
        """Return whether a hint for this slot has arrived since the last call, or arrives within `seconds`."""
        await self._drop_old()
        key = (client, slot)
        if key not in self._kept:
            self._kept[key] = client.hosts.hints(slot)
        self._used_at[key] = time.monotonic() + seconds
        return await self._kept[key].wait(seconds)

    async def _drop_old(self) -> None:
        now = time.monotonic()
        for key in [key for key, used_at in self._used_at.items() if now - used_at > KEPT_SECONDS]:
            del self._used_at[key]
            await self._kept.pop(key).close()
