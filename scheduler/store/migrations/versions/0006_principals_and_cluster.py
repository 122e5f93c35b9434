"""Revision 0006: the cluster's identity and clock, principals, and the principal of each reservation and event."""

import secrets
import time
from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add two tables, and columns that are NULL (unknown principal) in every row. No row of `reservations` or `events`
    is rewritten, because there may be a million.
    """
    cluster = op.create_table(
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
    row = {"id": 1, "identity": uuid4().hex, "created_at": time.time(), "clock_offset": 0.0, "clock_changes": 0}
    row |= {"boot": None, "base_time": None, "base_monotonic": None, "restores": 0, "principals_version": 0}
    op.bulk_insert(cluster, [row])
    principals = op.create_table(
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
    # The principal of the cluster's own processes.
    named = {"name": "leasehold", "role": "worker", "accounts": "[]", "key": secrets.token_urlsafe(32)}
    timed = {"created_at": time.time(), "previous_key": None, "previous_until": None}
    op.bulk_insert(principals, [{**named, **timed}])
    op.add_column("reservations", sa.Column("principal", _TEXT, nullable=True))
    op.add_column("reservations", sa.Column("key_hash", _TEXT, nullable=True))
    op.add_column("reservations", sa.Column("instances", sa.BigInteger(), nullable=True))
    for name, condition in (("principal", ""), ("account", " AND account IS NOT NULL")):
        where = sa.text(f"phase = 'pending'{condition}")
        op.create_index(
            f"reservations_pending_by_{name}",
            "reservations",
            [name, "instances"],
            sqlite_where=where,
            postgresql_where=where,
        )
    op.add_column("events", sa.Column("principal", _TEXT, nullable=True))
    op.add_column("requests", sa.Column("principal", _TEXT, nullable=True))
    # The table is made again, so that the schema has the same text as in a new database.
    with op.batch_alter_table("slots", recreate="always") as slots:
        slots.add_column(sa.Column("heartbeat", sa.BigInteger(), nullable=False, server_default="0"))
    with op.batch_alter_table("slots") as slots:
        slots.alter_column("heartbeat", server_default=None)
