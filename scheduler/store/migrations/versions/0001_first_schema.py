"""Revision 0001, the first schema: slots, reservations with leases, launch back-offs (holds), events, answers to
requests, messages to producers, rules, and the leader.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_ENDED_AT = "CASE WHEN phase IN ('cancelled', 'expired', 'failed', 'released') THEN changed_at END"


def upgrade() -> None:
    """Create every table, the only row of the table about the leader, and the counters."""
    _create_counters()
    _create_events()
    _create_holds()
    _create_leader()
    _create_leases()
    _create_outgoing()
    _create_requests()
    _create_reservations()
    _create_rules()
    _create_slots()


def _create_counters() -> None:
    counters = op.create_table(
        "counters",
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.bulk_insert(counters, [{"name": name, "value": 0} for name in ("sequence", "token", "buried")])


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("name", _TEXT, nullable=False),
        sa.Column("cause", _TEXT, nullable=False),
        sa.Column("slot", _TEXT, nullable=True),
        sa.Column("reservation", _TEXT, nullable=True),
        sa.Column("detail", _TEXT, nullable=True),
        sa.PrimaryKeyConstraint("number"),
        sqlite_autoincrement=True,
    )
    op.create_index("events_by_reservation", "events", ["reservation", "number"], **_where("reservation IS NOT NULL"))
    op.create_index("events_by_slot", "events", ["slot", "number"], **_where("slot IS NOT NULL"))
    op.create_index("events_by_time", "events", ["at"])


def _create_holds() -> None:
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
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("holds_by_mark", "holds", ["marked_at"])


def _create_leader() -> None:
    leader = op.create_table(
        "leader",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("holder", _TEXT, nullable=False),
        sa.Column("ticked_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.bulk_insert(leader, [{"id": 1, "term": 0, "holder": "", "ticked_at": 0.0}])


def _create_leases() -> None:
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
        sa.PrimaryKeyConstraint("reservation", "component"),
        sqlite_with_rowid=False,
    )
    op.create_index("leases_by_slot", "leases", ["slot"])


def _create_outgoing() -> None:
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


def _create_requests() -> None:
    op.create_table(
        "requests",
        sa.Column("id", _TEXT, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("answer", _TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("requests_by_time", "requests", ["at"])


def _create_reservations() -> None:
    op.create_table(
        "reservations",
        sa.Column(
            "sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
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
        sa.Column("ended_at", sa.Double(), sa.Computed(_ENDED_AT, persisted=True), nullable=True),
        sa.PrimaryKeyConstraint("sequence"),
        sa.UniqueConstraint("id"),
    )
    op.create_index("reservations_by_mark", "reservations", ["marked_at"])
    op.create_index("reservations_by_phase", "reservations", ["phase", "sequence"])
    op.create_index("reservations_ended", "reservations", ["ended_at"], **_where("ended_at IS NOT NULL"))


def _create_rules() -> None:
    op.create_table(
        "rules",
        sa.Column("version", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("document", _TEXT, nullable=False),
        sa.Column("applied_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("version"),
    )


def _create_slots() -> None:
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
        sa.Column("failed_boots", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("slots_by_mark", "slots", ["marked_at"])
    op.create_index("slots_by_pool", "slots", ["pool", "state"])
    op.create_index("slots_by_state", "slots", ["state"])


def _where(condition: str) -> dict[str, Any]:
    """Return the options of an index that contains only the rows which match the SQL `condition`."""
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}
