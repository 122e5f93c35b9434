"""Apply rules: store a document as the rules in force, and change the slots and accounts in the database to fit it."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from scheduler.model.accounts import Account
from scheduler.model.pools import slot_ids
from scheduler.model.principals import Principal
from scheduler.model.rules import Rules, list_image_sources, list_root_sources, read_rules, with_images
from scheduler.model.slots import Slot
from scheduler.model.transitions import Cause
from scheduler.operations.change_set import ChangeSet
from scheduler.operations.market import check_requirements
from scheduler.operations.membership import check_membership
from scheduler.operations.ports import Ports, announce
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.operations.writers.leases import LeaseWriter
from scheduler.operations.writers.quota import drop_account, put_account
from scheduler.policy.quota.accounting import stop
from scheduler.ports import Transaction

RULES_CHANGED = "rules_changed"
"""Name of the event that the rules changed. The event has their new `version`, and the `source` that applied them if it
is known.
"""


class RulesChangedError(Exception):
    """Raised when the rules in force are no longer the version that a change of the rules expects. Nothing was written.

    `version`: the version that is in force.
    """

    def __init__(self, version: int, expected: int) -> None:
        self.version = version
        super().__init__(f"the rules changed meanwhile: version {version} is in force, not {expected}")


@repeated_if_overtaken
def apply_rules(
    ports: Ports,
    document: Mapping[str, Any],
    *,
    prefix: str = "",
    cause: Cause = "operator",
    source: str | None = None,
    expected: int | None = None,
    images: Mapping[str, str] | None = None,
) -> tuple[int, bool]:
    """Check a document of rules, store it as the rules in force, and create, change or delete the slots and accounts
    that it concerns. Return two things: the version of the rules, and whether anything changed.

    Applying the same document again changes nothing. `prefix`: the path of the document, for the messages about faults.
    `source`: the name of the sender or file that applies the rules, for the history. `expected`: the version that must
    be in force now; None: any. `images`: the ids of images by their source; a source that is missing keeps its id.
    Raises InvalidInputError, RulesChangedError or ForeignClusterError; then nothing was written.
    """
    rules = read_rules(dict(document), prefix)
    check_requirements(ports.store, rules, prefix)
    check_membership(ports)
    with ports.store.transaction() as transaction:
        applied = write_rules(
            transaction, document, rules, cause=cause, source=source, expected=expected, images=images
        )
    applied.announce(ports)
    return applied.version, applied.changed


class Applied(NamedTuple):
    """The result of `write_rules`. `version`: the version in force; `change_set`: the changes to announce, None if
    nothing changed.
    """

    version: int
    change_set: ChangeSet | None

    @property
    def changed(self) -> bool:
        return self.change_set is not None

    def announce(self, ports: Ports) -> None:
        """Announce the changes, and request a tick. To announce them is to publish the rows, and to send tasks and
        notices. Call it after the commit.
        """
        if self.change_set is not None:
            announce(ports, self.change_set, kick=True)


def write_rules(
    transaction: Transaction,
    document: Mapping[str, Any],
    rules: Rules,
    *,
    cause: Cause,
    source: str | None,
    expected: int | None,
    principal: Principal | None = None,
    images: Mapping[str, str] | None = None,
) -> Applied:
    """Store the rules in a transaction that the caller commits, as `apply_rules` describes, and return what was
    applied. `rules`: the checked rules of `document`. `principal`: the sender of the request, whose name the event
    gets; None: there is none. `images`: ids of images by their source in the rules; a source that is missing keeps its
    id. Raises RulesChangedError if another version than `expected` is in force.
    """
    stored = transaction.load_rules()
    if expected is not None and stored.version != expected:
        raise RulesChangedError(stored.version, expected)
    found = {**stored.images, **(images or {})}
    ids = {source: found[source] for source in list_image_sources(rules) if source in found}
    found = ids | {each: found[each] for each in list_root_sources(with_images(rules, ids)) if each in found}
    if stored.version and (stored.document, stored.images) == (document, found):
        return Applied(stored.version, None)
    work = UnitOfWork(transaction, cause, principal=principal)
    work.count_submitted()
    changes_queues = _list_quota_systems(stored.rules) != _list_quota_systems(rules)
    # All rows at once, so that they are locked in the order in which all transactions lock rows.
    work.load(reservations=transaction.list_holders() if changes_queues else (), whole=True)
    version = transaction.save_rules(document, stored.version, found)
    fit_slots(work, list(work.slots.values()), rules)
    fit_accounts(work, list(work.accounts.values()), stored.rules, rules)
    # Leases are charged under `queue: quota` only. Their levels stay. Source: qscheduler.
    writer = LeaseWriter(work, rules)
    for row in list(work.reservations.values()):
        had_quota, has_quota = (
            each.settings_of(row.request.pool, row.request.system).queue == "quota" for each in (stored.rules, rules)
        )
        if has_quota == had_quota:
            continue
        leases = (writer.meter(row, lease) if has_quota else stop(lease, work.now) for lease in row.leases)
        work.put(msgspec.structs.replace(row, leases=tuple(leases)))
    work.note(RULES_CHANGED, {"version": version, **({"source": source} if source else {})}, cause=cause)
    return Applied(version, work.flush())


def fit_slots(work: UnitOfWork, slots: Iterable[Slot], rules: Rules) -> None:
    """Give each EC2 pool the slots `POOL-1` to `POOL-max_slots` of the new rules.

    Slots with a higher number, and slots of pools that the rules no longer list, are deleted if they are empty and kept
    otherwise. Slots of static pools are created by their hosts, and are not changed here. If a pool has become static,
    its launched machines drain.
    """
    wanted = {slot: name for name, pool in rules.pools.items() for slot in slot_ids(name, pool)}
    present = {slot.id: slot for slot in slots}
    for slot_id, pool in wanted.items():
        if slot_id not in present:
            work.put(Slot(id=slot_id, pool=pool, since=work.now))
    for slot in present.values():
        listed = rules.pools.get(slot.pool)
        if slot.state == "empty" and slot.id not in wanted and (listed is None or listed.is_elastic):
            work.delete(slot)
        elif listed is not None and not listed.is_elastic and slot.launch_id is not None and slot.drain_reason is None:
            work.change(slot, drain_reason="unconfigured")


def fit_accounts(work: UnitOfWork, accounts: Iterable[Account], before: Rules, rules: Rules) -> None:
    """Change the quota accounts in the database to what their tables (`accounts.NAME`) in the new rules contain.
    `before`: the rules that were in force.

    If the table of an account is new or changed, the account gets the settings of the table. It gets the balance of the
    table only if this balance is new or changed. An account whose table was removed is forgotten (deleted). A setting
    that an operator changed by a command stays until the table changes. When quota scheduling is switched on, accounts
    earn from now on.
    """
    work.accounts.update((account.id, account) for account in accounts)
    if rules.has_quota and not before.has_quota:
        for account in list(work.accounts.values()):
            work.put(msgspec.structs.replace(account, charged_at=work.now))
    for name, table in rules.accounts.items():
        known = before.accounts.get(name)
        if table != known:
            is_same_balance = known is not None and table.balance == known.balance
            put_account(work, name, table.model_dump(exclude={"balance"}), None if is_same_balance else table.balance)
    for name in before.accounts.keys() - rules.accounts.keys():
        present = work.accounts.get(name)
        if present is not None and not present.forgotten:
            drop_account(work, present)


def _list_quota_systems(rules: Rules) -> tuple[bool, set[str]]:
    """Return two things: (1) whether `quota` is the common queue type (`scheduler.queue`); (2) the names of the systems
    that are exceptions, which have `quota` although it is not the common type, or another type although it is.
    """
    is_common = rules.scheduler.queue == "quota"
    own = {name: rules.settings_of(None, name).queue == "quota" for name in rules.scheduler.system}
    return is_common, {name for name, is_quota in own.items() if is_quota != is_common}
