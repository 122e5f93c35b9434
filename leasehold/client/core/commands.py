"""The commands of a client: requests that change a reservation, a slot or an account. An answer means that the change
is committed.

docs/reference/protocol.md, "The verbs", describes them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from leasehold.client.display import Table
from leasehold.client.models import Answer
from leasehold.client.submitting import split_documents
from scheduler.protocol.verbs import KEY_VERBS


class AccountFields(TypedDict, total=False):
    """The settings of a quota account that `Commands.account` changes. A list has one number for each paid level, best
    level first.
    """

    charge_rate: Sequence[float]
    max_charge_seconds: float | str
    max_fanout: int
    per_label_task_limits: Mapping[str, int]
    disable_free_tasks: bool
    description: str
    enforce_max_runtime: bool
    balance: Sequence[float]


class Commands(ABC):
    """The commands of a client, except `submit`. Each command raises Refused, NotAnswered (safe to repeat) or
    Unavailable. `timeout` is in seconds; None: the timeout of the client.

    `token`: the fencing token of the lease. `key`: the key of the reservation; None: the key that `find_key` returns.
    """

    @abstractmethod
    async def find_key(self, reservation: str) -> str | None:
        """Return the key of a reservation, or None if this client does not have it."""

    @abstractmethod
    async def _find_keys(self, reservations: Iterable[str]) -> Mapping[str, str]:
        """Return the keys of these reservations, as reservation id -> key. Reservations whose keys this client does not
        have are omitted.
        """

    @abstractmethod
    async def _ask(self, verb: str, document: Mapping[str, Any], timeout: float | None) -> Answer:
        """Send a request with this verb to the workers, and return the answer."""

    @abstractmethod
    async def _ask_many(
        self, verb: str, chunks: Iterable[list[dict[str, Any]]], timeout: float | None
    ) -> Table[Answer]:
        """Send one request with this verb for each list of documents in `chunks`. A document has the fields of one
        request. Return one answer for each document, in the order of the documents.
        """

    async def renew(
        self,
        reservation: str,
        token: int | None = None,
        *,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Move the expiry of a reservation to the present time plus its ttl. A holder's first renewal also confirms the
        lease.
        """
        return await self._command("renew", reservation, token, timeout, key=key)

    async def confirm(
        self,
        reservation: str,
        token: int | None = None,
        *,
        slot: str | None = None,
        as_of: float | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Report that a reservation is running on its slot, or on `slot`. If the reservation has its lease on another
        slot, the lease moves to `slot`.

        `as_of`: time of the report in seconds since the epoch. A report that is older than the stack's state of the
        reservation changes nothing.
        """
        return await self._command("confirm", reservation, token, timeout, slot=slot, as_of=as_of, key=key)

    async def absent(self, reservation: str, *, as_of: float | None = None, timeout: float | None = None) -> Answer:
        """Report that a reservation neither runs nor waits any more. The reservation and its leases end. `as_of`: time
        of the report, as for `confirm`.
        """
        return await self._command("absent", reservation, None, timeout, as_of=as_of)

    async def idle(
        self,
        slot: str,
        *,
        labels: Mapping[str, str] | None = None,
        as_of: float | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Report that nothing runs on a slot. Reservations that were confirmed on this slot end; a lease that is not
        confirmed yet is kept. `labels`: the new labels of the slot, which are stored if no lease is left on it; None:
        the labels stay. `as_of`: time of the report, as for `confirm`.
        """
        return await self._send_fields("idle", {"slot": slot, "labels": labels, "as_of": as_of}, timeout)

    async def release(
        self,
        reservation: str,
        token: int | None = None,
        *,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """End a reservation because its holder has finished. A pending reservation has no lease, so its release needs
        no token.
        """
        return await self._command("release", reservation, token, timeout, key=key)

    async def renew_many(self, tokens: Mapping[str, int | None], *, timeout: float | None = None) -> Table[Answer]:
        """Renew many reservations, a thousand in each message. Return one answer for each reservation, in the order of
        `tokens` (reservation id -> fencing token of its lease). The answers about refused renewals have `errors`.

        Raise NotAnswered (safe to repeat) or Unavailable; reservations that were renewed until then stay renewed.
        """
        return await self._command_many("renew", tokens, timeout)

    async def release_many(self, tokens: Mapping[str, int | None], *, timeout: float | None = None) -> Table[Answer]:
        """End many reservations because their holder has finished. Messages, `tokens`, answers and errors are as for
        `renew_many`.
        """
        return await self._command_many("release", tokens, timeout)

    async def cancel(self, reservation: str, *, reason: str | None = None, timeout: float | None = None) -> Answer:
        """End a reservation in any phase, without a token. `reason`: a text for people."""
        return await self._command("cancel", reservation, None, timeout, reason=reason)

    async def priority(self, reservation: str, priority: float, *, timeout: float | None = None) -> Answer:
        """Change the priority of a reservation. Under the queue `priority`, the reservation with the highest priority
        is served first. The priority 0 puts a pending reservation on hold.
        """
        return await self._command("priority", reservation, None, timeout, priority=priority)

    async def fail(
        self,
        reservation: str,
        token: int | None = None,
        *,
        component: str | None = None,
        reason: str | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Report that a component of a reservation, or the whole reservation (`component` None), has died. The
        reservation fails, and its restart policy decides whether it restarts.
        """
        return await self._command("fail", reservation, token, timeout, component=component, reason=reason, key=key)

    async def surrender(
        self,
        reservation: str,
        token: int | None = None,
        *,
        component: str | None = None,
        want: int | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Give revoked leases back before their deadline. `component`: the name of an elastic instance, or of a
        component; then its instance or instances are given back, even if they are not being revoked. None: all leases
        that are being revoked.

        `want`: the most instances of the component from now on, more or fewer than it has. If it has more, those with
        the highest index end. `component` None: the only elastic component.
        """
        return await self._command("surrender", reservation, token, timeout, component=component, want=want, key=key)

    async def decline(
        self,
        reservation: str,
        token: int | None = None,
        *,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Give leases back because the holder cannot use their slots. The reservation returns to its position in the
        queue, and its next lease is on other slots.
        """
        return await self._command("decline", reservation, token, timeout, key=key)

    async def suspend(
        self,
        reservation: str,
        token: int | None = None,
        *,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Give the leases of a reservation back, and keep it out of the queue until `resume`. The reservation keeps its
        position in the queue.
        """
        return await self._command("suspend", reservation, token, timeout, key=key)

    async def resume(self, reservation: str, *, key: str | None = None, timeout: float | None = None) -> Answer:
        """Put a suspended reservation back into the queue, so that it can be leased again."""
        return await self._command("resume", reservation, None, timeout, key=key)

    async def cordon(self, slot: str, *, timeout: float | None = None) -> Answer:
        """Mark a slot so that it takes no new leases (for operators)."""
        return await self._ask("cordon", {"slot": slot}, timeout)

    async def uncordon(self, slot: str, *, timeout: float | None = None) -> Answer:
        """Undo the cordon of a slot, so that it takes new leases again (for operators)."""
        return await self._ask("uncordon", {"slot": slot}, timeout)

    async def drain(self, slot: str, *, timeout: float | None = None) -> Answer:
        """Drain a slot (for operators): it takes no new leases, and its machine is terminated when its leases have
        ended.
        """
        return await self._ask("drain", {"slot": slot}, timeout)

    async def account(self, account: str, *, timeout: float | None = None, **fields: Unpack[AccountFields]) -> Answer:
        """Create a quota account with these fields, or change the given fields of an existing account. Without
        `balance` the balance of an existing account stays.
        """
        return await self._send_fields("account", {"account": account, **fields}, timeout)

    async def reset_account(self, account: str, *, timeout: float | None = None) -> Answer:
        """Set the balance of a quota account to 0 at every level."""
        return await self._ask("reset_account", {"account": account}, timeout)

    async def forget_account(self, account: str, *, timeout: float | None = None) -> Answer:
        """Delete the balance and the settings of a quota account. Its leases continue without payment, and its pending
        reservations have no account from now on.
        """
        return await self._ask("forget_account", {"account": account}, timeout)

    async def _command(
        self, verb: str, reservation: str, token: int | None, timeout: float | None, **more: Any
    ) -> Answer:
        if verb in KEY_VERBS and more.get("key") is None:
            more["key"] = await self.find_key(reservation)
        return await self._send_fields(verb, {"reservation": reservation, "token": token, **more}, timeout)

    async def _command_many(self, verb: str, tokens: Mapping[str, int | None], timeout: float | None) -> Table[Answer]:
        keys = await self._find_keys(tokens)
        documents = ({"reservation": name, "token": token, "key": keys.get(name)} for name, token in tokens.items())
        return await self._ask_many(verb, split_documents(documents), timeout)

    async def _send_fields(self, verb: str, content: Mapping[str, Any], timeout: float | None) -> Answer:
        return await self._ask(verb, {key: value for key, value in content.items() if value is not None}, timeout)
