"""Hosts of static pools, as they speak for themselves: here, alive, gone; and what is leased on them.

A heartbeat is one write to Redis that waits behind no queue; everything else is a request like any other.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import redis

from leasehold.client.models import Answer, Host, read_answer
from leasehold.client.transport import RequestTransport, explain_redis
from leasehold.client.view_reader import ViewReader
from leasehold.client.watch import Hints
from leasehold.common.heartbeats import Heartbeat, format_heartbeat
from leasehold.errors import Fault, Refused, Unknown, read_faults

HEARTBEAT_SECONDS: Final = 86400
"""Its time to live, from which its age is computed: the same for all hosts."""


class Hosts:
    """Sends the messages of hosts. `machine`: an id of the host, which stays while it is the same machine.

    Requests raise Refused, NotAnswered (ask again) and Unavailable; `timeout`: seconds.
    """

    def __init__(self, wire: RequestTransport, reader: ViewReader, timeout: float) -> None:
        self._wire, self._reader, self._timeout = wire, reader, timeout
        self._counters: dict[str, int] = {}
        """By slot, the counter of the last heartbeat, or the one above which the stack wants the next."""

    def register(
        self,
        slot: str,
        *,
        pool: str,
        machine: str,
        resources: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
        address: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """The host is here, with this; what is left out is the pool's. Again from the same machine it updates; from
        another one it is refused until an operator removes the slot.
        """
        said = {"pool": pool, "machine": machine, "resources": resources, "labels": labels, "address": address}
        document = {"slot": slot, **{key: value for key, value in said.items() if value is not None}}
        answer = read_answer(self._ask("register", document, timeout))
        self._counters[slot] = max(self._counters.get(slot, 0), answer.heartbeat or 0)
        return answer

    def heartbeat(self, slot: str, machine: str, version: str | None = None) -> None:
        """The host is alive, and knows this `version` of its slot (`Host.version`). There is no answer. Only the
        machine that the slot belongs to is heard; a principal with the name of the slot signs it. Raises Unavailable.
        """
        beat = self._wire.sign_heartbeat(slot, Heartbeat(machine, version), self._counters.get(slot, 0))
        self._counters[slot] = beat.counter or 0
        try:
            self._wire.redis.set(self._wire.names.heartbeat(slot), format_heartbeat(beat), ex=HEARTBEAT_SECONDS)
        except redis.RedisError as error:
            raise explain_redis(error, self._wire.view_url, "write heartbeats", "takes no heartbeat") from error

    def check(self, slot: str, machine: str) -> None:
        """Raise Unknown or Refused unless this slot is in the view and belongs to this machine."""
        row = self._reader.find_slots([slot])[0]
        if row is None:
            raise Unknown(f"no slot {slot} is in the view: has its host registered?")
        if row.machine != machine:
            raise Refused([Fault(0, "machine", f"the machine that {slot} belongs to", f'"{machine}"')])

    def leave(self, slot: str, machine: str, *, timeout: float | None = None) -> Answer:
        """The host wants to go: its slot takes no new leases, and is empty after the last one."""
        return read_answer(self._ask("leave", {"slot": slot, "machine": machine}, timeout))

    def remove(self, slot: str, *, timeout: float | None = None) -> Answer:
        """An operator's word: the host does not come back; what it holds fails, and its name is free."""
        return read_answer(self._ask("remove", {"slot": slot}, timeout))

    def leases(self, slot: str, machine: str, *, timeout: float | None = None) -> Host:
        """The slot, with the leases on it, as the database has them."""
        return msgspec.convert(self._ask("leases", {"slot": slot, "machine": machine}, timeout), Host)

    def hints(self, slot: str) -> Hints:
        """Return a watch over the changes of this slot; to be closed."""
        return Hints(self._wire, self._wire.names.host(slot))

    def _ask(self, verb: str, document: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        answer = self._wire.ask(verb, document, self._timeout if timeout is None else timeout)
        if not answer.get("ok"):
            raise Refused(read_faults(answer.get("errors", [])))
        return answer
