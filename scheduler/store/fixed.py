"""SQL statements of transactions that are the same for every kind of database."""

from sqlalchemy import bindparam, case, delete, func, insert, literal_column, select, update

from scheduler.model.accounts import FREE
from scheduler.model.transitions import INACTIVE
from scheduler.store import tables
from scheduler.store.shapes import ACCOUNTS, SLOTS
from scheduler.store.shared_rules import VERSIONS_A_RESTORE

_LEADER = tables.leader.c
COUNT = (
    update(tables.counters)
    .where(tables.counters.c.name == bindparam("counter"))
    .values(value=tables.counters.c.value + bindparam("count"))
    .returning(tables.counters.c.value)
)
BURIED = select(tables.counters.c.value).where(tables.counters.c.name == "buried").with_for_update()
BURY = (
    update(tables.counters)
    .where(tables.counters.c.name == "buried", tables.counters.c.value < bindparam("deepest"))
    .values(value=bindparam("deepest"))
)
TAKE_TERM = (
    update(tables.leader)
    .values(term=_LEADER.term + 1, holder=bindparam("me"))
    .returning(_LEADER.term, _LEADER.holder, _LEADER.ticked_at)
)
ALL_SLOTS = select(*SLOTS.columns).order_by(tables.slots.c.id).with_for_update()
ACTIVE = select(func.count()).where(
    tables.slots.c.pool == bindparam("of_pool"), tables.slots.c.state.not_in(sorted(INACTIVE))
)
_ACCOUNT, _LEASE, _OWNER = tables.accounts.c, tables.leases.c, tables.reservations.c
ALL_ACCOUNTS = select(*ACCOUNTS.columns).order_by(_ACCOUNT.id).with_for_update()
# The time up to which the use of a lease is charged: see policy/quota/accounting.py.
_USED_FROM = case((_LEASE.charged_at > _ACCOUNT.charged_at, _LEASE.charged_at), else_=_ACCOUNT.charged_at)
RUNNING = (
    select(_ACCOUNT.id, _LEASE.level, func.sum(_LEASE.weight * (bindparam("now") - _USED_FROM)))
    .where(_LEASE.reservation == _OWNER.id, _OWNER.account == _ACCOUNT.id)
    .where(_ACCOUNT.forgotten.is_(False), _OWNER.sequence > _ACCOUNT.forgotten_upto)
    .where(_LEASE.charged_at.is_not(None), _LEASE.level < FREE, bindparam("now") > _USED_FROM)
    .group_by(_ACCOUNT.id, _LEASE.level)
)
HOLDERS = select(_LEASE.reservation).distinct().order_by(_LEASE.reservation)
SAVE_RULES = insert(tables.rules)
LOCK_LEADER = select(_LEADER.term).with_for_update()
NOTE_TICK = (
    update(tables.leader)
    .where(_LEADER.term == bindparam("my_term"), _LEADER.holder == bindparam("me"))
    .values(ticked_at=bindparam("now"))
)

LOCK_PRINCIPALS = select(tables.cluster.c.principals_version).with_for_update()
CHANGE_PRINCIPALS = update(tables.cluster).values(principals_version=tables.cluster.c.principals_version + 1)
FIND_SESSION = select(tables.ended_sessions.c.id).where(tables.ended_sessions.c.id == bindparam("session"))
END_SESSION = insert(tables.ended_sessions)
FORGET_SESSIONS = delete(tables.ended_sessions).where(tables.ended_sessions.c.until < bindparam("now"))
_INSTANCES = func.coalesce(func.sum(func.coalesce(_OWNER.instances, 1)), 0)
_PENDING = select(func.count(), _INSTANCES).where(_OWNER.phase == literal_column("'pending'"))
PENDING_UNSIGNED = _PENDING.where(_OWNER.principal.is_(None), _OWNER.sender.is_(None))
PENDING_OF_SENDER = _PENDING.where(_OWNER.principal.is_(None), _OWNER.sender == bindparam("name"))
PENDING_OF_PRINCIPAL = _PENDING.where(_OWNER.principal == bindparam("name"))
PENDING_OF_ACCOUNT = _PENDING.where(_OWNER.account.is_not(None), _OWNER.account == bindparam("name"))
INSERTED = (
    select(_OWNER.principal, _OWNER.account, _OWNER.sender, func.count(), _INSTANCES)
    # Both ends: without statistics, PostgreSQL would read the whole table for one.
    .where(_OWNER.sequence > bindparam("after"), _OWNER.sequence <= bindparam("upto"))
    .group_by(_OWNER.principal, _OWNER.account, _OWNER.sender)
)

JUMP_TERM = update(tables.leader).values(term=bindparam("to"), holder="", ticked_at=bindparam("long_ago"))
JUMP_TOKEN = update(tables.counters).where(tables.counters.c.name == "token").values(value=bindparam("to"))
COUNT_RESTORE = update(tables.cluster).values(
    restores=tables.cluster.c.restores + 1,
    # A process may have cached principals under a version that is used again after the restore.
    principals_version=tables.cluster.c.principals_version + VERSIONS_A_RESTORE,
)
