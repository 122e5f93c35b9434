"""Revision 0023: the schema of release 0.1.0.

The 23 revisions before the release led to these tables. A database that they made is at 0023 already, so it is taken
over as it is. The text is fixed: a later change of `tables.py` is a revision of its own.
"""

import secrets
import time
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = None
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create all tables, and the rows with which a cluster begins."""
    _create_tables()
    counters = sa.table("counters", sa.column("name"), sa.column("value"))
    op.bulk_insert(counters, [{"name": name, "value": 0} for name in ("sequence", "token", "buried", "market")])
    _insert("leader", id=1, term=0, holder="", ticked_at=0.0)
    _insert(
        "cluster",
        id=1,
        identity=uuid4().hex,
        created_at=time.time(),
        clock_offset=0.0,
        clock_changes=0,
        restores=0,
        principals_version=0,
    )
    # The principal of the cluster's own processes.
    key = secrets.token_urlsafe(32)
    _insert("principals", name="leasehold", role="worker", accounts="[]", key=key, created_at=time.time())


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def _create_tables() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", _TEXT, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("marked_at", sa.Double(), nullable=False),
        sa.Column("charge_rate", _TEXT, nullable=False),
        sa.Column("max_charge_seconds", sa.Double(), nullable=False),
        sa.Column("max_fanout", sa.BigInteger(), nullable=False),
        sa.Column("per_label_task_limits", _TEXT, nullable=False),
        sa.Column("disable_free_tasks", sa.Boolean(), nullable=False),
        sa.Column("description", _TEXT, nullable=False),
        sa.Column("balance", _TEXT, nullable=False),
        sa.Column("charged_at", sa.Double(), nullable=False),
        sa.Column("due", _TEXT, nullable=False),
        sa.Column("forgotten", sa.Boolean(), nullable=False),
        sa.Column("forgotten_upto", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("accounts_by_mark", "accounts", ["marked_at", "version"])
    op.create_table(
        "balances",
        sa.Column("account", _TEXT, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("balance", _TEXT, nullable=False),
        sa.PrimaryKeyConstraint("account", "at"),
        sqlite_with_rowid=False,
    )
    op.create_index("balances_by_time", "balances", ["at"])
    op.create_table(
        "booked_machines",
        sa.Column("machine", _TEXT, nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("machine"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "cluster",
        sa.Column("id", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("identity", _TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("clock_offset", sa.Double(), nullable=False),
        sa.Column("clock_changes", sa.BigInteger(), nullable=False),
        sa.Column("boot", _TEXT, nullable=True),
        sa.Column("base_time", sa.Double(), nullable=True),
        sa.Column("base_monotonic", sa.Double(), nullable=True),
        sa.Column("restores", sa.BigInteger(), nullable=False),
        sa.Column("principals_version", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "costs",
        sa.Column("hour", sa.Double(), nullable=False),
        sa.Column("pool", _TEXT, nullable=False),
        sa.Column("offering", _TEXT, nullable=False),
        sa.Column("account", _TEXT, nullable=False),
        sa.Column("kind", _TEXT, nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("dollars", sa.Double(), nullable=False),
        sa.Column("unpriced", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hour", "pool", "offering", "account", "kind"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "counters",
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "ended_sessions",
        sa.Column("id", _TEXT, nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "events",
        sa.Column("number", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("cause", _TEXT, nullable=False),
        sa.Column("slot", _TEXT, nullable=True),
        sa.Column("reservation", _TEXT, nullable=True),
        sa.Column("detail", _TEXT, nullable=True),
        sa.Column("principal", _TEXT, nullable=True),
        sa.PrimaryKeyConstraint("number"),
        sqlite_autoincrement=True,
    )
    op.create_index("events_by_reservation", "events", ["reservation", "number"], **_where("reservation IS NOT NULL"))
    op.create_index("events_by_slot", "events", ["slot", "number"], **_where("slot IS NOT NULL"))
    op.create_index("events_by_time", "events", ["at"])
    op.create_table(
        "holds",
        sa.Column("id", _TEXT, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("marked_at", sa.Double(), nullable=False),
        sa.Column("pool", _TEXT, nullable=False),
        sa.Column("kind", _TEXT, nullable=False),
        sa.Column("subject", _TEXT, nullable=False),
        sa.Column("refused_at", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.Column("delay", sa.Double(), nullable=False),
        sa.Column("active", sa.BigInteger(), nullable=False),
        sa.Column("decided_at", sa.Double(), nullable=False),
        sa.Column("streak", sa.BigInteger(), nullable=False),
        sa.Column("code", _TEXT, server_default="", nullable=False),
        sa.Column("message", _TEXT, server_default="", nullable=False),
        sa.Column("at_boot", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("holds_by_mark", "holds", ["marked_at", "version"])
    op.create_table(
        "instance_types",
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory_mib", sa.Double(), nullable=False),
        sa.Column("architectures", _TEXT, nullable=False),
        sa.Column("is_current", sa.Boolean(), nullable=False),
        sa.Column("accelerators", sa.BigInteger(), nullable=False),
        sa.Column("accelerator", _TEXT, nullable=True),
        sa.Column("local_disk_gib", sa.Double(), nullable=False),
        sa.Column("is_bare_metal", sa.Boolean(), nullable=False),
        sa.Column("markets", _TEXT, nullable=False),
        sa.Column("zones", _TEXT, nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("gpus", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("neurons", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("fpgas", sa.BigInteger(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "leader",
        sa.Column("id", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("holder", _TEXT, nullable=False),
        sa.Column("ticked_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "leases",
        sa.Column("reservation", _TEXT, nullable=False),
        sa.Column("component", _TEXT, nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("kind", _TEXT, nullable=False),
        sa.Column("slot", _TEXT, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("resources", _TEXT, nullable=False),
        sa.Column("level", sa.BigInteger(), nullable=False),
        sa.Column("cost", _TEXT, nullable=False),
        sa.Column("assigned_at", sa.Double(), nullable=False),
        sa.Column("confirmed_at", sa.Double(), nullable=True),
        sa.Column("state", _TEXT, nullable=False),
        sa.Column("revoke_by", sa.Double(), nullable=True),
        sa.Column("charged_at", sa.Double(), nullable=True),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("cores", sa.Double(), nullable=True),
        sa.Column("revoke_reason", _TEXT, nullable=True),
        sa.PrimaryKeyConstraint("reservation", "component"),
        sqlite_with_rowid=False,
    )
    op.create_index("leases_by_slot", "leases", ["slot"])
    op.create_table(
        "outgoing",
        sa.Column("id", _TEXT, nullable=False),
        sa.Column("callback", _TEXT, nullable=False),
        sa.Column("payload", _TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("sent_at", sa.Double(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("outgoing_by_time", "outgoing", ["created_at"])
    op.create_table(
        "price_changes",
        sa.Column("type", _TEXT, nullable=False),
        sa.Column("zone", _TEXT, nullable=False),
        sa.Column("market", _TEXT, nullable=False),
        sa.Column("hour", sa.Double(), nullable=False),
        sa.Column("price", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("type", "zone", "market", "hour"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "prices",
        sa.Column("type", _TEXT, nullable=False),
        sa.Column("zone", _TEXT, nullable=False),
        sa.Column("market", _TEXT, nullable=False),
        sa.Column("price", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("source", _TEXT, nullable=False),
        sa.PrimaryKeyConstraint("type", "zone", "market"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "principals",
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("role", _TEXT, nullable=False),
        sa.Column("accounts", _TEXT, nullable=False),
        sa.Column("key", _TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("previous_key", _TEXT, nullable=True),
        sa.Column("previous_until", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "requests",
        sa.Column("id", _TEXT, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("answer", _TEXT, nullable=False),
        sa.Column("principal", _TEXT, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("requests_by_time", "requests", ["at"])
    op.create_table(
        "reservations",
        sa.Column("sequence", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("id", _TEXT, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("marked_at", sa.Double(), nullable=False),
        sa.Column("phase", _TEXT, nullable=False),
        sa.Column("reason", _TEXT, nullable=True),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.Column("system", _TEXT, nullable=True),
        sa.Column("pool", _TEXT, nullable=True),
        sa.Column("account", _TEXT, nullable=True),
        sa.Column("restart_policy", _TEXT, nullable=False),
        sa.Column("priority", sa.Double(), nullable=False),
        sa.Column("request", _TEXT, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("leased_at", sa.Double(), nullable=True),
        sa.Column("confirmed_at", sa.Double(), nullable=True),
        sa.Column("failed_at", sa.Double(), nullable=True),
        sa.Column("restarted_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("restarts", sa.BigInteger(), nullable=False),
        sa.Column("unconfirmed", sa.BigInteger(), nullable=False),
        sa.Column("interruptions", sa.BigInteger(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("suspended", sa.Boolean(), nullable=False),
        sa.Column("declined", _TEXT, nullable=False),
        sa.Column("revoke_reason", _TEXT, nullable=True),
        sa.Column("revoke_by", sa.Double(), nullable=True),
        sa.Column(
            "ended_at",
            sa.Double(),
            sa.Computed(
                "CASE WHEN phase IN ('cancelled', 'expired', 'failed', 'released') THEN changed_at END", persisted=True
            ),
            nullable=True,
        ),
        sa.Column("component_restarts", _TEXT, nullable=True),
        sa.Column("principal", _TEXT, nullable=True),
        sa.Column("key_hash", _TEXT, nullable=True),
        sa.Column("instances", sa.BigInteger(), nullable=True),
        sa.Column("sender", _TEXT, nullable=True),
        sa.PrimaryKeyConstraint("sequence"),
        sa.UniqueConstraint("id"),
    )
    op.create_index("reservations_by_mark", "reservations", ["marked_at", "version"])
    op.create_index("reservations_by_phase", "reservations", ["phase", "sequence"])
    op.create_index("reservations_ended", "reservations", ["ended_at"], **_where("ended_at IS NOT NULL"))
    op.create_index(
        "reservations_pending_by_account",
        "reservations",
        ["account", "instances"],
        **_where("phase = 'pending' AND account IS NOT NULL"),
    )
    op.create_index(
        "reservations_pending_by_principal", "reservations", ["principal", "instances"], **_where("phase = 'pending'")
    )
    op.create_index(
        "reservations_pending_by_sender",
        "reservations",
        ["sender", "instances"],
        **_where("phase = 'pending' AND principal IS NULL"),
    )
    op.create_table(
        "rules",
        sa.Column("version", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("document", _TEXT, nullable=False),
        sa.Column("applied_at", sa.Double(), nullable=False),
        sa.Column("images", _TEXT, nullable=True),
        sa.PrimaryKeyConstraint("version"),
    )
    op.create_table(
        "slots",
        sa.Column("id", _TEXT, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("marked_at", sa.Double(), nullable=False),
        sa.Column("pool", _TEXT, nullable=False),
        sa.Column("state", _TEXT, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("idle_since", sa.Double(), nullable=True),
        sa.Column("offering", _TEXT, nullable=True),
        sa.Column("market", _TEXT, nullable=True),
        sa.Column("price", sa.Double(), nullable=True),
        sa.Column("resources", _TEXT, nullable=True),
        sa.Column("labels", _TEXT, nullable=False),
        sa.Column("machine", _TEXT, nullable=True),
        sa.Column("cordoned", sa.Boolean(), nullable=False),
        sa.Column("last_seen", sa.Double(), nullable=True),
        sa.Column("interrupted_at", sa.Double(), nullable=True),
        sa.Column("interrupted_by", sa.Double(), nullable=True),
        sa.Column("drain_reason", _TEXT, nullable=True),
        sa.Column("error", _TEXT, nullable=True),
        sa.Column("launch_id", _TEXT, nullable=True),
        sa.Column("launch_reason", _TEXT, nullable=True),
        sa.Column("launch_request", _TEXT, nullable=True),
        sa.Column("attempts", sa.BigInteger(), nullable=False),
        sa.Column("not_before", sa.Double(), nullable=False),
        sa.Column("sent_at", sa.Double(), nullable=False),
        sa.Column("instance_id", _TEXT, nullable=True),
        sa.Column("address", _TEXT, nullable=True),
        sa.Column("instance_type", _TEXT, nullable=True),
        sa.Column("zone", _TEXT, nullable=True),
        sa.Column("missed", sa.BigInteger(), nullable=False),
        sa.Column("uses", sa.BigInteger(), nullable=False),
        sa.Column("failed_probes", sa.BigInteger(), nullable=False),
        sa.Column("unconfirmed", sa.BigInteger(), nullable=False),
        sa.Column("stranger", _TEXT, nullable=True),
        sa.Column("noted_at", sa.Double(), nullable=True),
        sa.Column("heartbeat", sa.BigInteger(), nullable=False),
        sa.Column("batch", _TEXT, nullable=True),
        sa.Column("launched_for", _TEXT, nullable=True),
        sa.Column("meter", _TEXT, nullable=True),
        sa.Column("launched_at", sa.Double(), nullable=True),
        sa.Column("launch_digest", _TEXT, nullable=True),
        sa.Column("power", _TEXT, nullable=True),
        sa.Column("storage_price", sa.Double(), nullable=True),
        sa.Column("gang", _TEXT, nullable=True),
        sa.Column("refusal", _TEXT, nullable=True),
        sa.Column("subnet", _TEXT, nullable=True),
        sa.Column("run", _TEXT, nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("slots_by_mark", "slots", ["marked_at", "version"])
    op.create_index("slots_by_pool", "slots", ["pool", "state"])
    op.create_index("slots_by_state", "slots", ["state"])


def _insert(table: str, **row: Any) -> None:
    op.bulk_insert(sa.table(table, *map(sa.column, row)), [row])
