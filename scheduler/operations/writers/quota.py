"""Writes quota accounts and their charges, and preemptions and changes of level, after testing each of these against
the current rows.

Sources: the steps charge, preempt and relevel of qscheduler.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler.model.accounts import NOTHING, Account, Levels, add, find_samples, subtract
from scheduler.model.decisions import Assign, Preempt, Relevel, Revoke
from scheduler.model.reservations import Lease, Reservation
from scheduler.operations.ending_leases import REVOKED, add_instance_event, note_unclean, return_to_queue, revoke
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.operations.writers.leases import LeaseWriter
from scheduler.policy.quota.accounting import charge, settle, share_cost, stop, sum_costs, take_share

PREEMPTED = "preempted"
CLAIMED = "reservation_claimed"
"""Name of the event that a pending reservation has claimed a slot whose preempted leases have a grace period. The
reservation stays pending.
"""
RELEVELLED = "reservation_relevelled"


def charge_accounts(work: UnitOfWork, names: Iterable[str], now: float) -> None:
    """Let these quota accounts earn, and pay for their leases in the current rows, up to `now`, the time of the plan.

    The accounts are locked. A transaction that ends one of their leases has committed before, or waits for this one.
    """
    running = work.transaction.sum_running(now)
    before = [account for name in names if (account := work.accounts.get(name)) and not account.forgotten]
    after = [charge(account, running.get(account.id, NOTHING), now) for account in before]
    for account, charged in zip(before, after, strict=True):
        if charged != account:
            work.put(charged)
            work.spent[account.id] = add(account.due, running.get(account.id, NOTHING))
    work.transaction.save_balances(find_samples(before, after))


def put_account(work: UnitOfWork, name: str, settings: Mapping[str, Any], balance: Levels | None) -> Account:
    """Store a quota account with these settings and return it. `balance` None: the present balance stays.

    A new account, or one that was deleted (`forgotten`), starts to earn now, with a balance of 0 unless `balance` is
    given. Reservations that were submitted before the account was deleted still have no account.
    """
    known = work.accounts.get(name)
    if known is None or known.forgotten:
        version, upto = (known.version, known.forgotten_upto) if known else (0, 0)
        fresh = Account(version=version, id=name, charged_at=work.now, forgotten_upto=upto)
    else:
        fresh = known
    changed = msgspec.structs.replace(fresh, **settings, balance=fresh.balance if balance is None else balance)
    if changed != known:
        work.put(changed)
        work.note("account_set", {"account": name})
    return changed


def drop_account(work: UnitOfWork, known: Account) -> Account:
    """Mark a quota account as forgotten, and delete its balance and settings.

    The row stays, because it records which reservations were submitted before the account was forgotten.
    """
    changed = Account(
        version=known.version,
        id=known.id,
        charged_at=work.now,
        forgotten=True,
        forgotten_upto=work.submitted,
    )
    work.put(changed)
    work.note("account_forgotten", {"account": known.id})
    return changed


class QuotaWriter:
    """Writes preemptions and changes of level in a transaction. If a decision is skipped, its method returns the reason
    as text, else None.
    """

    def __init__(self, leases: LeaseWriter) -> None:
        self.work, self.rules, self.now, self._leases = leases.work, leases.rules, leases.now, leases

    def relevel(self, decision: Relevel) -> str | None:
        """Let the account of a reservation pay for its leases at the level `decision.to` from now on. Their cost so far
        and the balance of the account stay. If the decision is skipped, return the reason as text, else None.
        """
        current = self.work.reservations.get(decision.reservation)
        if current is None or not current.leases or current.phase == "revoking":
            return "the reservation is not leased"
        if any(lease.level != decision.source for lease in current.leases):
            return "the leases are at another level than planned"
        if self.work.account_of(current) is None:
            return "the reservation's account does not exist"
        leases = tuple(
            msgspec.structs.replace(lease, level=decision.to)
            if lease.state == "revoking"  # it costs nothing any more
            else msgspec.structs.replace(
                settle(lease, self.now),
                level=decision.to,
                charged_at=self.now,
                weight=self._leases.weigh(current, lease.resources, self.work.slots.get(lease.slot)),
            )
            for lease in current.leases
        )
        self.work.put(msgspec.structs.replace(current, leases=leases))
        self.work.note(RELEVELLED, {"from": decision.source, "to": decision.to}, reservation=current.id)
        return None

    def preempt(self, decisions: Sequence[Preempt], revokes: Sequence[Revoke], assignment: Assign | None) -> str | None:
        """Write the preemptions for one reservation (the newcomer) together with its assignment. There are several if
        it is a gang that preempts on several slots. If the preempted reservations (the victims) get a grace period, the
        newcomer gets claims instead of the assignment. If one of these cannot be written, write nothing and return the
        reason as text; else return None. `revokes`: the preempted elastic leases of victims that stay leased.

        The account of the newcomer pays what the victims have cost, and the accounts of the victims get it back. The
        newcomer's first lease starts with that cost.
        """
        if (reason := self._object_to(decisions, revokes, assignment)) is not None:
            return reason
        current = self.work.reservations[decisions[0].reservation]
        victims = self._list_victims(decisions, revokes)
        cost = NOTHING
        for victim in victims:
            cost = add(cost, victim.cost)
        if (payer := self.work.account_of(current)) is None:
            return "the reservation's account does not exist"
        # Balances are compared level by level, from level 0 on. A balance equal to the cost is too little.
        if not cost < payer.balance:
            names = ", ".join(victim.row.id for victim in victims)
            return f"account {payer.id} has too little balance to preempt {names}"
        self._pay(payer, victims, cost)
        for victim in victims:
            self._take_back(victim)
        self._put_in_place(current, decisions, assignment, cost)
        return None

    def _list_victims(self, decisions: Sequence[Preempt], revokes: Sequence[Revoke]) -> list["_Victim"]:
        """Return the preempted reservations, each once, with what is paid for them."""
        found: dict[str, _Victim] = {}
        for decision in decisions:
            for name in decision.victims:
                row = self.work.reservations[name]
                parts = {each.component for each in revokes if each.reservation == name}
                cost = share_cost(row.leases, len(parts), self.now) if parts else sum_costs(row.leases, self.now)
                found.setdefault(name, _Victim(row, decision, cost, parts))
        return list(found.values())

    def _object_to(
        self, decisions: Sequence[Preempt], revokes: Sequence[Revoke], assignment: Assign | None
    ) -> str | None:
        """Return as text why the rows do not allow the preemptions for one reservation; None if they do. The balance of
        its account is not tested.
        """
        decision = decisions[0]
        parting = {(each.reservation, each.component) for each in revokes}
        names = [name for each in decisions for name in each.victims]
        leaving = [name for each in decisions for name in each.victims if name not in each.partial]
        if decision.revoke_by is None and assignment is None:
            return "no assignment follows the preemption"
        current = self.work.reservations.get(decision.reservation)
        if current is None:
            return "the reservation does not exist any more"
        if not all(name in self.work.reservations for name in names):
            return "a reservation to preempt does not exist any more"
        for each in decisions:
            own = [revoke for revoke in revokes if revoke.slot == each.slot]
            if (reason := self._object_to_victims(current, each, own)) is not None:
                return reason
        if current.leases:
            return "the reservation has a claim already"
        is_claim = decision.revoke_by is not None
        return self._leases.object_to(current, decision.leases, leaving=leaving, parting=parting, is_claim=is_claim)

    def _object_to_victims(self, current: Reservation, decision: Preempt, revokes: Sequence[Revoke]) -> str | None:
        """Return as text why one of the victims of `decision` may not be preempted for the reservation `current`, by
        the current rows. Return None if all may be preempted. `revokes`: those of elastic leases on the slot.
        """
        account = self.work.account_of(current)
        for victim in (self.work.reservations[name] for name in decision.victims):
            there = [each for each in victim.leases if each.slot == decision.slot and self.work.is_there(each)]
            if victim.id in decision.partial:
                ending = {(each.component, each.epoch) for each in revokes if each.reservation == victim.id}
                there = [each for each in there if each.kind == "elastic" and each.state == "held"]
                there = [each for each in there if (each.component, each.epoch) in ending]
                if len(there) < len(ending):
                    return f"{victim.id} does not have this elastic lease on {decision.slot} any more"
            if victim.phase != "leased" or not there:
                return f"{victim.id} has no lease on {decision.slot}"
            if any(lease.level <= decision.level for lease in victim.leases):
                return f"{victim.id} is not leased at a worse level"
            settings = self.rules.settings_of(victim.request.pool, victim.request.system)
            if not victim.request.preemptible or any(
                self.now < lease.assigned_at + settings.min_run_time for lease in there
            ):
                return f"{victim.id} is not preemptible, or its min_run_time is not over"
            if account is not None and account == self.work.account_of(victim):
                return f"{victim.id} belongs to the same account"
        return None

    def _pay(self, payer: Account, victims: Sequence["_Victim"], cost: Levels) -> None:
        """Take `cost` from `payer`, the account of the reservation that gets the slot, and pay each account of a
        preempted reservation what that reservation, or its share, has cost. A victim without an account gets nothing
        back.
        """
        for victim in victims:
            if (account := self.work.account_of(victim.row)) is not None:
                self.work.put(msgspec.structs.replace(account, balance=add(account.balance, victim.cost)))
        self.work.put(msgspec.structs.replace(payer, balance=subtract(payer.balance, cost)))

    def _take_back(self, victim: "_Victim") -> None:
        """Return a preempted reservation to the queue at once, or, if the decision has a deadline, revoke its leases.
        If it stays leased, end or revoke only the elastic leases that were preempted. From now on its account does not
        pay for these leases.
        """
        row, decision = victim.row, victim.decision
        newcomer = self.work.reservations[decision.reservation]
        details = {
            "by": newcomer.id,
            "account": newcomer.request.account,
            "level": decision.level,
            "ran_at": max(lease.level for lease in row.leases),
            "slot": decision.slot,
            "cost": list(victim.cost),
            "deadline": decision.revoke_by,
        }
        if victim.parts:
            self._take_parts(victim, details)
        elif decision.revoke_by is None:
            return_to_queue(self.work, self.rules, row, PREEMPTED, details=details)
        else:
            stopped = [stop(lease, self.now) for lease in row.leases]
            revoke(self.work, row, PREEMPTED, decision.revoke_by, stopped, details=details)

    def _take_parts(self, victim: "_Victim", details: Mapping[str, Any]) -> None:
        """End or revoke the preempted elastic leases of a reservation that stays leased. `details`: of the event."""
        revoke_by, left, gone = victim.decision.revoke_by, list[Lease](), list[Lease]()
        for lease in take_share(victim.row.leases, victim.parts, self.now):
            if lease.component not in victim.parts:
                left.append(lease)
                continue
            gone.append(lease)
            if revoke_by is not None:
                leaving = {"state": "revoking", "revoke_by": revoke_by, "revoke_reason": PREEMPTED}
                left.append(msgspec.structs.replace(lease, **leaving))
        self.work.put(msgspec.structs.replace(victim.row, leases=tuple(left)))
        for lease in gone:
            if revoke_by is None:
                self.work.free_slot(lease)
                note_unclean(self.work, self.rules, lease)
            else:
                self.work.put(self.work.slots[lease.slot])
        # One event has the payment; with several leases on other slots each has an event of its own.
        for index, lease in enumerate(gone):
            parted = msgspec.structs.replace(lease, revoke_by=revoke_by)
            paid = details if index == 0 else {}
            add_instance_event(self.work, REVOKED, victim.row.id, parted, PREEMPTED, paid)

    def _put_in_place(
        self, current: Reservation, decisions: Sequence[Preempt], assignment: Assign | None, cost: Levels
    ) -> None:
        decision = decisions[0]
        details: dict[str, Any] = {
            "preempted": list(dict.fromkeys(name for each in decisions for name in each.victims)),
            "account": current.request.account,
            "slot": decision.slot,
            "cost": list(cost),
        }
        if assignment is not None:
            self._leases.lease(current, assignment.leases, decision.level, cost, details)
            return
        self._leases.claim(current, decision.leases, decision.level, cost)
        claims = {
            "slots": list(dict.fromkeys(each.slot for each in decision.leases)),
            "level": decision.level,
            "deadline": decision.revoke_by,
            **details,
        }
        self.work.note(CLAIMED, claims, reservation=current.id)


class _Victim(NamedTuple):
    """A preempted reservation, as its row was before."""

    row: Reservation
    decision: Preempt
    cost: Levels
    """What is paid for it: its cost or, if it stays leased, the share of the leases that end."""
    parts: set[str]
    """The components of the elastic leases that end alone; empty: the reservation ends as a whole."""
