"""Slots count failed probes and unconfirmed leases in a row; boots that fail in a row are a hold of their pool."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Rename a column that was never counted up, and add one that is 0 in every row."""
    if op.get_bind().dialect.name == "sqlite":
        _rebuild_slots()
    else:
        op.alter_column("slots", "failed_boots", new_column_name="failed_probes")
        op.add_column("slots", sa.Column("unconfirmed", sa.BigInteger(), nullable=False, server_default="0"))
        op.alter_column("slots", "unconfirmed", server_default=None)


def _rebuild_slots() -> None:
    """SQLite adds no column that may not be NULL without a default, so the table is copied into a new one."""
    for name in ("slots_by_mark", "slots_by_pool", "slots_by_state"):
        op.drop_index(name, "slots")
    op.rename_table("slots", "slots_before")
    _create_slots()
    op.execute("INSERT INTO slots SELECT *, 0 FROM slots_before")
    op.drop_table("slots_before")
    op.create_index("slots_by_mark", "slots", ["marked_at"])
    op.create_index("slots_by_pool", "slots", ["pool", "state"])
    op.create_index("slots_by_state", "slots", ["state"])


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
        sa.Column("failed_probes", sa.BigInteger(), nullable=False),
        sa.Column("unconfirmed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
