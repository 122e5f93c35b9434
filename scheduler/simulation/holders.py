"""Simulated holders of reservations with a `runtime`: they confirm, renew, surrender and release the leases."""

from dataclasses import dataclass
from math import inf

from scheduler.model.command_schemas import ConfirmDocument, HolderDocument, SurrenderDocument
from scheduler.model.reservations import Reservation
from scheduler.operations.commands.lease_commands import release, renew, surrender
from scheduler.operations.commands.reports import confirm
from scheduler.simulation.cluster import SimulatedCluster


@dataclass
class _Work:
    """The work of one reservation. `left`: instance-seconds of work that were left at the time `since`; `rate`: number
    of instances that work since then; `ends_at`: when the work ends at this rate; `token`: the fencing token of the
    reservation's lease.
    """

    left: float
    since: float
    token: int
    rate: float = 0.0
    ends_at: float = inf


class Holders:
    """Simulated holders of all reservations with a `runtime`: each holder works on the leased slots, then releases
    them.

    The work of a reservation is `runtime` seconds for each of its instances. While the essential instances are leased,
    each leased instance does one second of this work in each second.
    """

    def __init__(self, cluster: SimulatedCluster, *, confirm_needlessly: bool = True) -> None:
        """Start simulated holders for the reservations of `cluster`.

        `confirm_needlessly`: confirm leases also where no `confirm_timeout` requires it, so that rows have
        `confirmed_at`.
        """
        self._cluster = cluster
        self._confirm_needlessly = confirm_needlessly
        self._works: dict[str, _Work] = {}

    def watch(self, reservation: Reservation) -> None:
        """Let the holder of this reservation react to a change: begin or end work, or surrender revoked leases."""
        if reservation.request.runtime is None:
            return
        if reservation.phase == "leased":
            self._work(reservation, reservation.request.runtime)
        else:
            self._works.pop(reservation.id, None)
        if reservation.phase == "revoking" or any(lease.state == "revoking" for lease in reservation.leases):
            self._note(reservation.id, reservation.token, self._cluster.event_queue.now, self._surrender)

    def _work(self, reservation: Reservation, runtime: float) -> None:
        now = self._cluster.event_queue.now
        work = self._works.get(reservation.id)
        if work is None or work.token != reservation.token:
            instances = sum(component.count for component in reservation.request.components)
            work = _Work(runtime * instances, now, reservation.token)
            self._works[reservation.id] = work
            request = reservation.request
            settings = self._cluster.ports.rules().settings_of(request.pool, request.system)
            if self._confirm_needlessly or settings.confirm_timeout > 0:
                self._note(reservation.id, work.token, now, self._confirm)
            self._note_renewal(reservation)
        rate = float(len(reservation.leases))
        if rate == work.rate:
            # The same rate keeps the same end, so that rounding errors do not accumulate.
            return
        work.left = max(0.0, work.left - work.rate * (now - work.since))
        work.rate, work.since = rate, now
        work.ends_at = now + work.left / rate if rate else inf
        if rate:
            self._note(reservation.id, work.token, work.ends_at, self._finish)

    def _note(self, name: str, token: int, at: float, act) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        self._cluster.event_queue.note(at, lambda: act(name, token))

    def _note_renewal(self, reservation: Reservation) -> None:
        """Schedule a renewal of this reservation when half of the time until its expiry has passed."""
        if reservation.expires_at is not None:
            now = self._cluster.event_queue.now
            self._note(reservation.id, reservation.token, (now + reservation.expires_at) / 2, self._renew)

    def _is_working(self, name: str, token: int) -> bool:
        work = self._works.get(name)
        return work is not None and work.token == token

    def _send(self, name: str, command, document: HolderDocument) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        rules = self._cluster.ports.rules()
        self._cluster.change(lambda work: command(work, rules, document), lambda work: work.load(reservations=[name]))

    def _confirm(self, name: str, token: int) -> None:
        if self._is_working(name, token):
            self._send(name, confirm, ConfirmDocument(reservation=name))

    def _renew(self, name: str, token: int) -> None:
        if self._is_working(name, token):
            self._send(name, renew, HolderDocument(reservation=name))
            row = self._cluster.store.find_reservations(ids=[name])[0]
            self._note_renewal(row)

    def _surrender(self, name: str, token: int) -> None:
        row = self._cluster.store.find_reservations(ids=[name])[0]
        is_revoked = row.phase == "revoking" or any(lease.state == "revoking" for lease in row.leases)
        if is_revoked and row.token == token:
            self._send(name, surrender, SurrenderDocument(reservation=name))

    def _finish(self, name: str, token: int) -> None:
        work = self._works.get(name)
        if work is not None and work.token == token and work.ends_at <= self._cluster.event_queue.now:
            del self._works[name]
            self._send(name, release, HolderDocument(reservation=name))
