"""The commands of a client that change something. Each is a request; an answer means that it was committed.

Commands of holders, producers and operators, and commands for accounts: docs/reference/protocol.md, "The
verbs".
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from leasehold.client.models import Answer
from leasehold.client.reservation_keys import KEY_VERBS


class AccountFields(TypedDict, total=False):
    """What is to be changed of a quota account; lists have a number for each paid level, best first."""

    charge_rate: Sequence[float]
    max_charge_seconds: float | str
    max_fanout: int
    per_label_task_limits: Mapping[str, int]
    disable_free_tasks: bool
    description: str
    balance: Sequence[float]


class Commands(ABC):
    """The words but `submit`. Each raises Refused, NotAnswered (say it again) and Unavailable.

    `key`: the key of the reservation; default: the one that `find_key` finds.
    """

    @abstractmethod
    def find_key(self, reservation: str) -> str | None:
        """The key of a reservation, if it is known here."""

    @abstractmethod
    def _ask(self, verb: str, document: Mapping[str, Any], timeout: float | None) -> Answer:
        """The answer to one request."""

    def renew(
        self,
        reservation: str,
        token: int | None = None,
        *,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Move its expiry to now + ttl; the holder's first renewal also confirms its lease."""
        return self._tell("renew", reservation, token, timeout, key=key)

    def confirm(
        self,
        reservation: str,
        token: int | None = None,
        *,
        slot: str | None = None,
        as_of: float | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """It runs where it was put, or on `slot`, whatever was believed: there it is leased from now on. `as_of`
        (seconds since the epoch) dates the notice: one that is older than what is known changes nothing.
        """
        return self._tell("confirm", reservation, token, timeout, slot=slot, as_of=as_of, key=key)

    def absent(self, reservation: str, *, as_of: float | None = None, timeout: float | None = None) -> Answer:
        """It neither runs nor waits, whatever was believed: it has ended, and a lease of it with it."""
        return self._tell("absent", reservation, None, timeout, as_of=as_of)

    def idle(
        self,
        slot: str,
        *,
        labels: Mapping[str, str] | None = None,
        as_of: float | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Nothing runs on that slot, whatever was believed; `labels` are its new ones. A lease that was given and not
        confirmed yet is held all the same.
        """
        return self._say("idle", {"slot": slot, "labels": labels, "as_of": as_of}, timeout)

    def release(
        self,
        reservation: str,
        token: int | None = None,
        *,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Its holder is done: the reservation ends. One that is pending needs no token."""
        return self._tell("release", reservation, token, timeout, key=key)

    def cancel(self, reservation: str, *, reason: str | None = None, timeout: float | None = None) -> Answer:
        """End a reservation in any phase; needs no token."""
        return self._tell("cancel", reservation, None, timeout, reason=reason)

    def priority(self, reservation: str, priority: float, *, timeout: float | None = None) -> Answer:
        """Higher is served first under the queue `priority`; 0 puts one that waits on hold."""
        return self._tell("priority", reservation, None, timeout, priority=priority)

    def fail(
        self,
        reservation: str,
        token: int | None = None,
        *,
        component: str | None = None,
        reason: str | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """A component died, or the whole of it: it fails, and its restart policy decides what comes next."""
        return self._tell("fail", reservation, token, timeout, component=component, reason=reason, key=key)

    def surrender(
        self,
        reservation: str,
        token: int | None = None,
        *,
        component: str | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Give back what is being revoked before its deadline; with an elastic component that one, wanted or not."""
        return self._tell("surrender", reservation, token, timeout, component=component, key=key)

    def decline(
        self,
        reservation: str,
        token: int | None = None,
        *,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Its holder cannot use what it got: pending again, with its place in the queue; those slots are left out."""
        return self._tell("decline", reservation, token, timeout, key=key)

    def suspend(
        self,
        reservation: str,
        token: int | None = None,
        *,
        key: str | None = None,
        timeout: float | None = None,
    ) -> Answer:
        """Give its leases back and let it wait on hold, with its place in the queue."""
        return self._tell("suspend", reservation, token, timeout, key=key)

    def resume(self, reservation: str, *, key: str | None = None, timeout: float | None = None) -> Answer:
        """Undo a suspension."""
        return self._tell("resume", reservation, None, timeout, key=key)

    def cordon(self, slot: str, *, timeout: float | None = None) -> Answer:
        """An operator's word: the slot takes no new leases."""
        return self._ask("cordon", {"slot": slot}, timeout)

    def uncordon(self, slot: str, *, timeout: float | None = None) -> Answer:
        """An operator's word: undo a cordon."""
        return self._ask("uncordon", {"slot": slot}, timeout)

    def drain(self, slot: str, *, timeout: float | None = None) -> Answer:
        """An operator's word: the slot's leases run on, then its machine goes."""
        return self._ask("drain", {"slot": slot}, timeout)

    def account(self, account: str, *, timeout: float | None = None, **fields: Unpack[AccountFields]) -> Answer:
        """Create a quota account, or change what is named of it; its balance stays unless one is given."""
        return self._say("account", {"account": account, **fields}, timeout)

    def reset_account(self, account: str, *, timeout: float | None = None) -> Answer:
        """Its balance becomes 0 at every level."""
        return self._ask("reset_account", {"account": account}, timeout)

    def forget_account(self, account: str, *, timeout: float | None = None) -> Answer:
        """Its balance and rules go; what runs for it runs on, unpaid; what waits for it has no account from then on."""
        return self._ask("forget_account", {"account": account}, timeout)

    def _tell(self, verb: str, reservation: str, token: int | None, timeout: float | None, **more: Any) -> Answer:
        if verb in KEY_VERBS and more.get("key") is None:
            more["key"] = self.find_key(reservation)
        return self._say(verb, {"reservation": reservation, "token": token, **more}, timeout)

    def _say(self, verb: str, content: Mapping[str, Any], timeout: float | None) -> Answer:
        return self._ask(verb, {key: value for key, value in content.items() if value is not None}, timeout)
